"""Profiles of a made-up machine whose step time and memory are sums that the tests know."""

from bttlab.baseline.record import Machine
from bttlab.cost.configuration import FineTuning
from bttlab.cost.design import configurations
from bttlab.cost.profiles import VERSION, Profile, Profiles

BUDGET = 2**27


def seconds_of(config: FineTuning, batch: int) -> float:
    """2 ms a step, and 20 GFLOP/s for what a token is multiplied with: thrice where it is trained, else twice."""
    tokens = batch * config.sequence_length
    macs = tokens * (config.active - config.layers * config.hidden * config.experts)
    output = tokens * config.vocabulary * config.hidden
    passes = 3 if config.method == "full" else 2
    return 2e-3 + (passes * (macs - output) + 3 * output) * 2 / 20e9


def largest_batch_of(config: FineTuning, memory: int = BUDGET) -> int:
    """A MiB, the state, and of a token 10 vectors a layer and its logits twice."""
    token = 4 * (10 * config.layers * config.hidden + 2 * config.vocabulary)
    return (memory - 2**20 - config.state_bytes) // (token * config.sequence_length)


def made_up(configs: list[FineTuning] | None = None) -> Profiles:
    """Return profiles as that machine would have them."""
    profiles = []
    for config in configurations() if configs is None else configs:
        batches = [1, 2, 4, 8]
        seconds = [seconds_of(config, batch) for batch in batches]
        profiles.append(Profile(config, largest_batch_of(config), batches, seconds, seconds, {}, 4))
    machine = Machine(
        kind="cpu", name="made up", memory_bytes=None, driver=None, cuda=None, cudnn=None, torch="2", python="3",
        system="Linux", precision="highest", cpu="made up", cores=1, threads=1, load_before=[0.0], load_after=[0.0],
    )  # fmt: skip
    return Profiles(VERSION, machine, "2026-01-01", "made up", "made up", 20e9, BUDGET, profiles)
