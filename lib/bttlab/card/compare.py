"""Compare the same training on two devices, such as a card and its emulation.

Both run the same program, with the same order of every sum and the same tables of functions, and both take subnormal
numbers as zeros (PG060), so a card should give the bits of the emulated one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pynq

from bttlab.card.emulation import EmulatedU50
from bttlab.card.opening import open_trainer
from bttlab.errors import BttlabError
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.quantities import measured

NAMES = ("u50", "emulated")


class CompareError(BttlabError):
    """Raised if devices cannot be compared."""


@dataclass(frozen=True)
class DeviceRun:
    """Results of training on one device.

    Attributes
    ----------
    name : str
        As the card calls itself.
    emulated : bool
    clock_mhz : int
        Of its overlay.
    losses : ndarray of float32, shape (samples,)
    parameters : dict of str to ndarray
        After the last sample.
    seconds : float
        Wall-clock time of the one call that trained, measured; on a card it bounds the kernel's time from above.
    modelled_cycles : int
        What the program's steps say of these samples.
    counted_cycles : int
        What the machine's loop counted; 0 on the emulated card, which runs programs without one.
    """

    name: str
    emulated: bool
    clock_mhz: int
    losses: np.ndarray
    parameters: dict[str, np.ndarray]
    seconds: float
    modelled_cycles: int
    counted_cycles: int = 0

    @property
    def cycles(self) -> dict[str, Any]:
        """Cycles of the training, with their provenance."""
        if self.counted_cycles:
            return measured(self.counted_cycles, "cycles", "counted by the card's loop")
        return modelled_cycles(self.modelled_cycles)


@dataclass(frozen=True)
class Difference:
    """Difference of two arrays; the first is the reference.

    Attributes
    ----------
    name : str
    size, different : int
        Elements, and how many of them differ in a bit.
    largest : float
        Largest absolute difference.
    relative : float
        Frobenius norm of the difference over that of the reference.
    """

    name: str
    size: int
    different: int
    largest: float
    relative: float

    @classmethod
    def between(cls, name: str, reference: np.ndarray, other: np.ndarray) -> "Difference":
        """Compare two float32 arrays of one shape."""
        a, b = np.asarray(reference, np.float64), np.asarray(other, np.float64)
        norm = float(np.linalg.norm(a)) or 1.0
        different = np.count_nonzero(_bits(reference) != _bits(other))
        return cls(
            name, a.size, int(different), float(np.abs(a - b).max(initial=0)), float(np.linalg.norm(a - b)) / norm
        )


@dataclass(frozen=True)
class Comparison:
    """Two runs from the same parameters over the same samples.

    Attributes
    ----------
    runs : tuple of DeviceRun
        The second is the reference.
    losses : Difference
    first_different : int or None
        The first sample whose losses differ in a bit.
    parameters : tuple of Difference
    """

    runs: tuple[DeviceRun, DeviceRun]
    losses: Difference
    first_different: int | None
    parameters: tuple[Difference, ...]

    @property
    def modelled_cycles(self) -> int:
        """Modelled cycles of these samples."""
        return self.runs[1].modelled_cycles

    @property
    def identical(self) -> bool:
        """True if no bit differs."""
        return not self.losses.different and not any(parameter.different for parameter in self.parameters)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "identical": self.identical,
            "samples": self.losses.size,
            "first_different_sample": self.first_different,
            "losses": vars(self.losses),
            "parameters": [vars(parameter) for parameter in self.parameters],
            "devices": [
                {
                    "name": run.name,
                    "emulated": run.emulated,
                    "clock_mhz": run.clock_mhz,
                    "seconds": {
                        "value": run.seconds,
                        "unit": "s",
                        "provenance": "measured",
                        "how": "time.perf_counter around the call",
                    },
                    "cycles": run.cycles,
                }
                for run in self.runs
            ],
            "cycles": modelled_cycles(self.modelled_cycles),
        }


def open_device(name: str, taken: Sequence[pynq.Device] = ()) -> pynq.Device:
    """Return the card with a name that is not in use yet.

    Parameters
    ----------
    name : str
        "u50" for a real card, "emulated", or a number of `pynq.Device.devices`.
    taken : sequence of pynq.Device

    Raises
    ------
    CompareError
        If there is none.
    """
    devices = pynq.Device.devices
    if name.isdecimal() and int(name) < len(devices):
        asked = [devices[int(name)]]
    elif name in NAMES:
        asked = [device for device in devices if isinstance(device, EmulatedU50) == (name == "emulated")]
    else:
        raise CompareError(f"no device {name!r}; choose u50, emulated, or the number of one that bttlab doctor lists")
    free = [device for device in asked if device not in taken]
    if not free and name == "emulated":
        return EmulatedU50()  # another one costs nothing
    if not free:
        raise CompareError(
            f"device {name} is compared with itself; give two"
            if asked
            else "no U50 is here: bttlab doctor lists the cards; --device emulated twice compares two emulated ones"
        )
    return free[0]


def compare(
    model: ModelConfig,
    names: Sequence[str],
    samples: Any,
    optimizer: Optimizer,
    learning_rate: float,
    seed: int = 0,
    trust: bool = False,
) -> Comparison:
    """Train a model on two devices, from the same initial parameters over the same samples.

    Parameters
    ----------
    model : ModelConfig
        One that the machine on the card holds.
    names : sequence of str
        Of two devices, as `open_device` takes them; the second is the reference.
    samples : bttlab.data.Samples
    optimizer : Optimizer
    learning_rate : float
    seed : int
        Of the initial parameters.
    trust : bool
        As for `bttlab.card.load_overlay`.

    Raises
    ------
    CompareError
        If they are not two devices that are here.
    bttlab.compiler.errors.ProgramError, bttlab.card.OverlayError
        If the machine does not hold the model, or one of them has no overlay.
    bttlab.model.NumericalFault
        As `bttlab.card.TrainerDriver.train`.
    """
    if len(names) != 2:
        raise CompareError(f"{len(names)} devices: a comparison is of two; give --device twice")
    devices: list[pynq.Device] = []
    for name in names:
        devices.append(open_device(name, devices))
    parameters = initial_parameters(model, seed)
    first, reference = (_run(model, device, parameters, samples, optimizer, learning_rate, trust) for device in devices)
    apart = np.flatnonzero(_bits(first.losses) != _bits(reference.losses))
    return Comparison(
        (first, reference),
        Difference.between("losses", reference.losses, first.losses),
        int(apart[0]) if len(apart) else None,
        tuple(
            Difference.between(name, tensor, first.parameters[name]) for name, tensor in reference.parameters.items()
        ),
    )


def _run(
    model: ModelConfig,
    device: pynq.Device,
    parameters: Any,
    samples: Any,
    optimizer: Optimizer,
    learning_rate: float,
    trust: bool,
) -> DeviceRun:
    trainer = open_trainer(model, device, trust=trust)
    trainer.load_parameters(parameters)
    begin = time.perf_counter()
    losses = trainer.train(samples, optimizer, learning_rate)
    seconds = time.perf_counter() - begin
    cycles = sum(trainer.profile().values())
    counted = 0 if isinstance(device, EmulatedU50) else trainer.counted_cycles
    clock = device.clocks["clock0"]["frequency"]  # the data clock, which kernels run at
    stored = trainer.store_parameters()
    return DeviceRun(device.name, isinstance(device, EmulatedU50), clock, losses, stored, seconds, cycles, counted)


def modelled_cycles(value: int) -> dict[str, Any]:
    """Return modelled cycles with their provenance."""
    how = "the program's steps, at an interval of 1"
    return {"value": value, "unit": "cycles", "provenance": "modelled", "how": how}


def _bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).view(np.int32)
