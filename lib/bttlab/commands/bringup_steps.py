"""The steps of `bttlab bringup`."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bttlab.commands import NOTE, OK, PROBLEM, Check
from bttlab.model.choices import LEARNING_RATES
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import measured

CHUNK = 32
NODES = Path("/dev/dri")
PATTERN = 1 << 20  # floats that are written to each memory bank
SLACK = 1.5  # times the modelled time that training may take


class Bringup:
    """The steps, in order; each needs those before it.

    The device is "auto", "emulated" or a number of `pynq.Device.devices`; the samples are those of the long run.
    """

    def __init__(self, device: str, overlay: str, model: Any, samples: Any, trust: bool = False):
        self._device, self._overlay, self._trust = device, overlay, trust
        self._model, self._samples = model, samples
        self._card: Any = None
        self._trainer: Any = None
        self._emulated: Any = None

    def steps(self) -> Iterator[Check]:
        """Yield the result of each step; after a problem none follows."""
        steps: list[tuple[str, Callable[[], Iterator[Check] | Check], str]] = [
            ("xrt", self._xrt, "install XRT, or source its setup.sh"),
            ("card", self._find_card, "look at it with: xbutil examine"),
            ("overlay", self._load, "the shell, the overlay or the kernel's name differ: see docs/vitis.md"),
            ("memory", self._memory, "a bank of HBM or the connection to it: xbutil validate"),
            ("units", self._units, "the unit's RTL or its timing: TARGET=hw_emu tells which, see docs/vitis.md"),
            ("one sample", self._one_sample, "the update, or a program longer than the pipeline allows: hw_emu, too"),
            ("many samples", self._many_samples, "timing or temperature, if one sample is right: lower CLOCK_MHZ"),
            ("speed", self._speed, "the initiation interval of the loop: make -C hls_src report"),
            ("sensors", self._sensors, "the card's satellite controller: xbutil examine -r electrical"),
        ]
        for name, step, cause in steps:
            try:
                result = step()
            except BttlabError as error:
                yield Check(name, PROBLEM, str(error), cause)
                return
            except (RuntimeError, OSError, ValueError) as error:  # of pynq
                yield Check(name, PROBLEM, f"{type(error).__name__}: {error}", cause)
                return
            way_out = result.way_out or cause * (result.status == PROBLEM)
            yield Check(name, result.status, result.detail, way_out, result.data)
            if result.status == PROBLEM:
                return

    def _xrt(self) -> Check:
        from bttlab.card.xrt import check_xrt, xrt_version, xrt_warning

        check_xrt()
        version = xrt_version()
        if version is None and self._device != "emulated":
            return Check(
                "", PROBLEM, "XILINX_XRT is not set, so pynq looks for no card", "source /opt/xilinx/xrt/setup.sh"
            )
        if warning := xrt_warning():
            return Check("", NOTE, warning)
        return Check("", OK, f"version {version}" if version else "none; the emulated card needs none")

    def _find_card(self) -> Check:
        import pynq

        from bttlab.card import EmulatedU50, shells

        devices = pynq.Device.devices
        if self._device.isdecimal() and int(self._device) < len(devices):
            self._card = devices[int(self._device)]
        else:
            wanted = self._device == "emulated"
            self._card = next((card for card in devices if isinstance(card, EmulatedU50) == wanted), None)
        if self._card is None:
            return Check("", PROBLEM, "XRT lists no card", _why_no_card())
        address = shells.pcie_address(self._card)
        uuids = sorted(shells.card_interfaces(self._card))
        detail = f"{self._card.name} at {address or 'no PCIe address'}, interface {', '.join(uuids) or 'not listed'}"
        return Check("", OK, detail, data={"shell": self._card.name, "interfaces": uuids})

    def _load(self) -> Check:
        from bttlab.card import EmulatedU50, load_overlay
        from bttlab.card.kernel import TRAINER_KERNEL
        from bttlab.card.waiting import card_errors

        loaded = load_overlay(self._overlay, self._card, self._trust)
        with card_errors(self._card):
            self._trainer = getattr(loaded, TRAINER_KERNEL.instance)  # compares DESCRIBE with this package's machine
        self._emulated = load_overlay("trainer", EmulatedU50(), self._trust).trainer_1
        clock = self._clock()
        data = {"sha256": self._trainer.overlay_sha256, "clock_mhz": clock}
        return Check("", OK, f"{self._overlay} is loaded, its machine is this package's, {clock} MHz", data=data)

    def _clock(self) -> int:
        return self._card.clocks["clock0"]["frequency"]

    def _memory(self) -> Check:
        wrong = []
        banks = self._trainer.memory_banks
        for number, (name, (_, bank)) in enumerate(banks.items()):
            buffer = bank.allocate((PATTERN,), np.float32)
            pattern = np.random.default_rng(number).standard_normal(PATTERN, np.float32)
            buffer[:] = pattern
            buffer.sync_to_device()
            buffer[:] = 0
            buffer.sync_from_device()
            if not np.array_equal(buffer, pattern):
                wrong.append(name)
        where = ", ".join(f"{name} in {tag}" for name, (tag, _) in banks.items())
        return _compared(wrong, f"{4 * PATTERN >> 20} MiB written and read in each bank: {where}", "differs in")

    def _units(self) -> Check:
        from bttlab.card.unit_programs import unit_programs

        count, wrong = 0, []
        for seed, unit in enumerate(unit_programs()):
            on_card, emulated = (unit.run(trainer, seed) for trainer in (self._trainer, self._emulated))
            count += 1
            different = sum(
                int(np.count_nonzero(on_card[name].view(np.int32) != emulated[name].view(np.int32)))
                for name in emulated
            )
            if different:
                name = f"{unit.unit}, {unit.optimizer.name}," if unit.optimizer else unit.unit
                wrong.append(f"{name} with banks {', '.join(map(str, unit.banks))} ({different} elements)")
        return _compared(
            wrong, f"{count} programs of one unit and its banks give the emulated card's bits", "other bits:"
        )

    def _train(self, trainer: Any, samples: Any, optimizer: str) -> tuple[np.ndarray, dict[str, np.ndarray], float]:
        from bttlab.model import Optimizer, initial_parameters

        model = self._model
        trainer.load_program(model)
        trainer.load_parameters(initial_parameters(model, 0))
        losses, seconds = [], 0.0
        for first in range(0, len(samples), CHUNK):
            begin = time.perf_counter()
            losses.append(
                trainer.train(samples[first : first + CHUNK], Optimizer(optimizer), LEARNING_RATES[optimizer])
            )
            seconds += time.perf_counter() - begin
        return np.concatenate(losses), trainer.store_parameters() | trainer.store_optimizer_state(), seconds

    def _one_sample(self) -> Check:
        wrong = []
        for optimizer in LEARNING_RATES:
            both = (self._train(trainer, self._samples[:1], optimizer) for trainer in (self._trainer, self._emulated))
            (_, on_card, _), (_, emulated, _) = both
            wrong += [f"{name} ({optimizer})" for name in _different(on_card, emulated)]
        return _compared(
            wrong, f"parameters and moments of {', '.join(LEARNING_RATES)} are the emulated card's", "other bits:"
        )

    def _many_samples(self) -> Check:
        losses, on_card, self._seconds = self._train(self._trainer, self._samples, "sgd")
        expected, emulated, _ = self._train(self._emulated, self._samples, "sgd")
        apart = np.flatnonzero(losses.view(np.int32) != expected.view(np.int32))
        wrong = [f"losses from sample {apart[0]} on"] if len(apart) else []
        wrong += _different(on_card, emulated)
        detail = f"losses and parameters of {len(self._samples)} samples are the emulated card's"
        return _compared(wrong, detail, "other bits:")

    def _speed(self) -> Check:
        cycles = sum(self._emulated.profile().values())
        modelled = cycles / (self._clock() * 1e6)
        count = len(self._samples)
        rate = measured(count / self._seconds, "samples/s", "time.perf_counter around the calls that train")
        detail = (
            f"{count / self._seconds:.0f} samples/s (measured, calls included), {count / modelled:.0f} modelled "
            f"from {cycles} cycles at {self._clock()} MHz"
        )
        data = {"rate": rate, "modelled_cycles": cycles, "counted_cycles": self._trainer.counted_cycles}
        if self._seconds <= SLACK * modelled:
            return Check("", OK, detail, data=data)
        way_out = "an emulated card is slower; on a card: the loop's interval (make -C hls_src report), or PCIe"
        return Check("", NOTE, detail, way_out, data)

    def _sensors(self) -> Check:
        from bttlab.card.telemetry import board_power
        from bttlab.estimate.card import estimate

        running = estimate(self._model, self._samples.lengths[:CHUNK].tolist()).power.running
        power, temperature = board_power(self._card), self._card.device_info.mOnChipTemp
        provenance = getattr(self._card, "provenance", "measured")
        detail = (
            f"{power:.1f} W, {temperature:.0f} C just after training ({provenance}); "
            f"modelled while it trains: {running.low:.0f} to {running.high:.0f} W"
        )
        data = {"power_watts": power, "temperature_celsius": temperature, "provenance": provenance}
        if power <= 0 or temperature <= 0:
            return Check("", PROBLEM, f"{detail}; a sensor reads 0", data=data)
        return Check("", OK if power <= running.high else NOTE, detail, data=data)


def _compared(wrong: list[str], detail: str, what: str) -> Check:
    if not wrong:
        return Check("", OK, detail)
    rest = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
    return Check("", PROBLEM, f"{what} {'; '.join(wrong[:8])}{rest}", data={"wrong": wrong})


def _different(on_card: dict[str, np.ndarray], emulated: dict[str, np.ndarray]) -> list[str]:
    """Return the tensors that differ in a bit, each with its relative difference."""
    found = []
    for name, expected in emulated.items():
        if np.asarray(on_card[name]).tobytes() != np.asarray(expected).tobytes():
            difference = np.linalg.norm(np.subtract(on_card[name], expected, dtype=np.float64))
            found.append(f"{name}, relative {difference / (np.linalg.norm(expected) or 1):.2g}")
    return found


def _why_no_card() -> str:
    """Return the likely cause that XRT lists no card."""
    from bttlab.card.shells import pcie_devices
    from bttlab.card.xrt import LAST_PYNQ, load_pyxrt, why_not_pynq

    if not pcie_devices():
        return "no PCIe device of Xilinx is in this host: is the card seated and powered?"
    if why := why_not_pynq():
        try:
            load_pyxrt()
        except BttlabError as error:
            return f"{why}; {error}; or: pip install 'pynq=={LAST_PYNQ}'"
    nodes = list(NODES.glob("renderD*"))
    if not nodes:
        return "the card is there, XRT's driver xocl is not loaded, or the node is not in this container"
    closed = [str(node) for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        return f"you may not open {', '.join(closed)}: join its group (render)"
    return "the card is there: xbutil examine says whether it is ready"
