"""Measured profiles of fine-tuning runs, and the file they are kept in."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from bttlab.baseline.machine import describe, load_average, open_device
from bttlab.baseline.record import Machine
from bttlab.cost.breakdown import time_breakdown
from bttlab.cost.configuration import CostError, FineTuning
from bttlab.cost.memory import measure_largest_batch
from bttlab.cost.training import Run, clock_of
from bttlab.figures import to_json
from bttlab.places import ROOT
from bttlab.records import RecordError, build, check_writable, write_whole

VERSION = 2  # of the file
RECORDED = ROOT / "data" / "cost" / "cpu.json"
ROUNDS = 7  # over the batch sizes, in turn; the medians count
MOST_TOKENS = 4096  # of a batch whose time is measured


@dataclass(frozen=True)
class Profile:
    """What was measured of one configuration.

    Attributes
    ----------
    config : FineTuning
    largest_batch : int
        That trains within the file's memory budget; 0 if none does.
    batches : list of int
        Whose steps were timed: powers of two up to the largest batch and to `MOST_TOKENS` tokens.
    seconds, wall_seconds : list of float
        Of a step of each of them, medians: by the file's clock, and on the wall.
    breakdown : dict of str to dict of str to float
        Seconds of a step at `breakdown_batch`; see `bttlab.cost.breakdown.time_breakdown`.
    breakdown_batch : int
    """

    config: FineTuning
    largest_batch: int
    batches: list[int]
    seconds: list[float]
    wall_seconds: list[float]
    breakdown: dict[str, dict[str, float]]
    breakdown_batch: int

    @property
    def tokens_per_second(self) -> np.ndarray:
        """Throughput at each of `batches`."""
        return np.array(self.batches) * self.config.sequence_length / np.array(self.seconds)


@dataclass(frozen=True)
class Profiles:
    """Profiles of one machine under one memory budget, all of them measured.

    Attributes
    ----------
    version : int
    machine : Machine
    date : str
        Of the last measurement, ISO 8601.
    clock, memory : str
        How time and the largest batch were measured.
    matmul_flops : float
        Floating-point operations a second of a large FP32 matrix product, by the same clock.
    budget_bytes : int
    profiles : list of Profile
    """

    version: int
    machine: Machine
    date: str
    clock: str
    memory: str
    matmul_flops: float
    budget_bytes: int
    profiles: list[Profile]

    def write(self, path: Path) -> None:
        """Write the file whole, or leave what is there; errors as for `write_whole`."""
        write_whole(path, to_json(asdict(self), indent=1) + "\n")


def read_profiles(path: Path) -> Profiles:
    """Read a file of profiles.

    Raises
    ------
    CostError
        If it is not there, or is not one; in one line.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict) and values.get("version") != VERSION:
            raise RecordError(f"version is {values.get('version')!r}, this bttlab reads {VERSION}")
        return build(Profiles, values, "")
    except FileNotFoundError:
        raise CostError(f"no profiles in {path}: measure some with bttlab cost profile --record {path}") from None
    except (RecordError, CostError, OSError, ValueError) as error:
        raise CostError(f"{path} is no file of profiles: {error}; measure anew, or give another") from None


def measure_profiles(
    configs: Iterable[FineTuning],
    path: Path,
    device: str,
    budget: int,
    today: str,
    on_profile: Callable[[int, FineTuning], None] = lambda number, config: None,
) -> Profiles:
    """Measure configurations one by one into a file; those that are in it already are not measured again.

    Parameters
    ----------
    configs : iterable of FineTuning
    path : Path
        Written after each configuration, so that an interrupted run goes on where it was.
    device : str
        "cpu" or "cuda".
    budget : int
        Bytes that the largest batch is sought within.
    today : str
        ISO 8601.
    on_profile : callable, optional
        Gets the number of a configuration, and the configuration, before it is measured.

    Raises
    ------
    CostError
        If the file holds another machine's profiles or another budget's.
    """
    check_writable(path)
    load = load_average()
    opened = open_device(device)
    if device == "cpu":
        torch.set_num_threads(1)
    if path.exists():
        before = read_profiles(path)
        here = describe(opened, load)
        if (before.machine.name, before.budget_bytes) != (here.name, budget):
            raise CostError(
                f"{path} holds profiles of {before.machine.name} within {before.budget_bytes:,} bytes, this is "
                f"{here.name} within {budget:,}; give another file with --record"
            )
        profiles, matmul_flops = list(before.profiles), before.matmul_flops
    else:
        profiles, matmul_flops = [], measure_matmul(device)

    def so_far() -> Profiles:
        how = clock_of(device).how, MEMORY[device]
        return Profiles(VERSION, describe(opened, load), today, *how, matmul_flops, budget, profiles)

    for number, config in enumerate(configs):
        if all(profile.config != config for profile in profiles):
            on_profile(number, config)
            profiles.append(measure_profile(config, device, budget))
            so_far().write(path)
    return so_far()


MEMORY = {
    "cpu": "bisection; two steps in a process of its own whose data segment (RLIMIT_DATA) may grow by the budget",
    "cuda": "bisection; two steps with the caching allocator limited to the budget",
}


def measure_matmul(device: str, size: int = 1024) -> float:
    """Return the floating-point operations a second of a product of two `size` x `size` FP32 matrices, a median."""
    clock = clock_of(device)
    left, right = torch.randn(2, size, size, device=device)
    seconds = []
    for _ in range(ROUNDS):
        begin = clock.read()
        left @ right
        seconds.append(clock.read() - begin)
    return 2 * size**3 / float(np.median(seconds))


def measure_profile(config: FineTuning, device: str, budget: int) -> Profile:
    """Measure one configuration; errors as for `measure_largest_batch`."""
    largest = measure_largest_batch(config, device, budget)
    run = Run(config, device)
    most = max(1, min(largest, MOST_TOKENS // config.sequence_length))
    batches = [2**power for power in range(most.bit_length())] if largest else []
    seconds, wall = _time_steps(run, batches)
    middle = batches[len(batches) // 2] if batches else 0
    breakdown = time_breakdown(run, middle, ROUNDS) if batches else {}
    return Profile(config, largest, batches, seconds, wall, breakdown, middle)


def _time_steps(run: Run, batches: list[int]) -> tuple[list[float], list[float]]:
    """Seconds of a step at each batch size by the device's clock and on the wall: the sizes in turn, medians."""
    clock = clock_of(run.device)
    inputs = [run.batch(batch) for batch in batches]
    for tokens in inputs:
        run.step(tokens)
    rows = np.empty((ROUNDS, len(batches), 2))
    for row in rows:
        for place, tokens in enumerate(inputs):
            begin = clock.read(), time.perf_counter()
            run.step(tokens)
            row[place] = clock.read() - begin[0], time.perf_counter() - begin[1]
    if not batches:
        return [], []
    medians = np.median(rows, axis=0)
    return medians[:, 0].tolist(), medians[:, 1].tolist()
