"""Training targets of a dashboard: a card with an overlay, a modelled GPU beside it, PyTorch on this machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pynq
import torch

from bttlab.baseline.gpus import find_gpu
from bttlab.baseline.run import MODULE
from bttlab.card import EmulatedU50
from bttlab.data import Samples
from bttlab.estimate.gpu import MODEL_VERSION, Modelled, model_step
from bttlab.lab.comparison import memory_of, published
from bttlab.lab.dashboard_runs import BaselineRun, BesideRun, DashboardRun, TrainerRun, check_idle
from bttlab.lab.energy_meters import EnergyMeter, card_meter, torch_meter
from bttlab.lab.workload import Workload
from bttlab.model import OPTIMIZERS, ModelConfig, Optimizer

BASELINES = {"dense": "dense", "tt": "TT right to left", "btt": "TT bi-directional"}
FASTEST_MODE = {"cpu": "eager", "cuda": "graphs"}


@dataclass(frozen=True)
class Target:
    name: str
    # takes samples, learning rate and, if there are `optimizers`, an optimizer's name and a seed; returns a
    # `DashboardRun` that has not begun
    make_run: Callable[..., DashboardRun]
    optimizers: Sequence[str] = ()  # to choose from; empty if the target has its own optimizer and seed


def card_target(overlay: pynq.Overlay, workload: Workload, optimizer: Optimizer | None = None) -> Target:
    """Return the target for the card that has an overlay.

    A run loads the program of the workload's model in the paper's flow if it is not on the card, and leaves the
    trained parameters there.

    Parameters
    ----------
    overlay : pynq.Overlay
        From `bttlab.card.load_overlay("trainer")`.
    workload : Workload
        What it trains on.
    optimizer : Optimizer, optional
        By default the user chooses one of three.

    Returns
    -------
    Target
        For a `Dashboard`.
    """
    device, trainer = overlay.device, overlay.trainer_1
    emulated = isinstance(device, EmulatedU50)
    place = f"{'emulated ' if emulated else ''}U50, {_formats(workload).get('btt', workload.config.short_name)}"

    def make_run(total: int, learning_rate: float, name: str = "sgd", seed: int = workload.seed) -> DashboardRun:
        rule = optimizer or Optimizer(name)
        check_idle(trainer)
        work = workload.with_seed(seed)
        model = work.config
        if not trainer.has_program_for(model, optimizer=rule):
            trainer.load_program(model, optimizer=rule)
        run = TrainerRun(
            place,
            total,
            learning_rate,
            card_meter(device, model, rule),
            work,
            trainer=trainer,
            optimizer=rule,
            is_loaded=lambda: overlay.is_loaded() and trainer.has_program_for(model, optimizer=rule),
            state_of=lambda: trainer.state,
            on_u50=True,
        )
        run.memory, run.published = memory_of(model, rule), published(model)
        return run

    return Target(place, make_run, (optimizer.name,) if optimizer else tuple(OPTIMIZERS))


def card_and_gpu_target(overlay: pynq.Overlay, workload: Workload, gpu: str = "RTX-3090") -> Target:
    """Return the target for the card with a modelled GPU that makes the same steps.

    Parameters
    ----------
    overlay : pynq.Overlay
        As for `card_target`.
    workload : Workload
        What they train on.
    gpu : str
        Name or alias in data/gpus.json.

    Returns
    -------
    Target
        For a `Dashboard`.
    """
    card = card_target(overlay, workload)
    format = "btt" if "btt" in _formats(workload) else MODULE
    of_steps: dict[tuple[str, int], Modelled] = {}

    def model(optimizer: str, sample: Samples) -> Modelled:
        key = optimizer, int(sample.lengths[0])
        if key not in of_steps:
            of_steps[key] = model_step(find_gpu(gpu), format, "graphs", workload.config, sample, optimizer)
        return of_steps[key]

    def make_run(total: int, learning_rate: float, optimizer: str = "sgd", seed: int = workload.seed) -> DashboardRun:
        def step(samples: Samples, seconds: float) -> tuple[float, ...]:
            taken = [model(optimizer, samples[n]) for n in range(len(samples))]
            return tuple(map(sum, zip((0.0,) * 4, *((*one.joules, one.seconds[1]) for one in taken), strict=True)))

        run = card.make_run(total, learning_rate, optimizer, seed)
        how = f"the GPU model {MODEL_VERSION}, its likely value; the whole board"
        longest = model(optimizer, workload.train[int(workload.train.lengths.argmax())])
        name = f"modelled {gpu}, {_formats(workload)[format]}"
        BesideRun(run, name, EnergyMeter("modelled", how, step), longest)
        return run

    return Target(f"{card.name}, beside a modelled {gpu}", make_run, card.optimizers)


def baseline_targets(workload: Workload) -> list[Target]:
    """Return dense and tensor training in PyTorch, on the CPU and, if there is one, on a GPU.

    Parameters
    ----------
    workload : Workload
        What they train on.

    Returns
    -------
    list of Target
        For a `Dashboard`.
    """
    devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    return [_baseline(format, device, workload) for device in devices for format in _formats(workload)]


def _formats(workload: Workload) -> dict[str, str]:
    """Return what the baselines of a model are called; a module of the user's own is trained as it is."""
    return BASELINES if isinstance(workload.config, ModelConfig) else {MODULE: workload.config.short_name}


def _baseline(format: str, device: str, workload: Workload) -> Target:
    place = "GPU" if device == "cuda" else "CPU"
    name = f"PyTorch {place}, {_formats(workload)[format]}"

    def make_run(total: int, learning_rate: float, _: str = "sgd", seed: int = workload.seed) -> DashboardRun:
        common = name, total, learning_rate, torch_meter(device), workload.with_seed(seed)
        return BaselineRun(*common, format=format, device=device, mode=FASTEST_MODE[device])

    return Target(name, make_run, ("sgd",))
