"""A trainer for dashboards under test: as fast or slow as wanted, and it can fail."""

import threading
import time
from dataclasses import replace

import numpy as np

from bttlab.lab.dashboard_runs import TrainerRun
from bttlab.lab.dashboard_targets import Target
from bttlab.lab.energy_meters import EnergyMeter
from bttlab.lab.workload import Workload
from bttlab.model import OPTIMIZERS, ModelConfig, NumericalFault, Optimizer, Predictions

THREADS = "bttlab"  # how the names of our threads begin


class PretendTrainer:
    """Losses fall as 1 / step; `fail` is raised at a step, `seconds` is what a sample takes."""

    def __init__(self, seconds: float = 1e-4, fail: tuple[int, Exception] | None = None):
        self.seconds, self.fail = seconds, fail
        self.steps = 0
        self.rates: list[float] = []

    config = ModelConfig()

    def load_parameters(self, parameters, optimizer_state=None) -> None:
        self.parameters = parameters
        self.steps = int(optimizer_state["step"]) if optimizer_state else 0

    def store_parameters(self):
        return self.parameters

    def store_optimizer_state(self):
        return {"step": np.array(self.steps)}

    def train(self, samples, optimizer, learning_rates, label_smoothing=0.0):
        learning_rate = float(learning_rates[0])
        time.sleep(self.seconds * len(samples))
        if self.fail and self.steps + len(samples) > self.fail[0]:
            good = self.fail[0] - self.steps
            if isinstance(self.fail[1], NumericalFault):
                losses = self._losses(good)
                self.steps += good
                raise NumericalFault("loss", good, losses, learning_rate)
            raise self.fail[1]
        if self.rates[-1:] != [learning_rate]:
            self.rates.append(learning_rate)
        losses = self._losses(len(samples))
        self.steps += len(samples)
        return losses

    def predict(self, samples):
        return Predictions(np.zeros(len(samples), np.float32), samples.intents, samples.slots)

    def _losses(self, count):
        return (1.0 / (1 + self.steps + np.arange(count))).astype(np.float32)


def pretend_target(
    workload: Workload, trainer: PretendTrainer, name: str = "pretend", meter: EnergyMeter | None = None, **keywords
) -> Target:
    """A target that trains with a pretend trainer."""

    def make_run(total, learning_rate, optimizer="sgd", seed=0):
        energy, work = meter or EnergyMeter(None, "no meter in a test"), replace(workload, seed=seed)
        return TrainerRun(
            name, total, learning_rate, energy, work, trainer=trainer, optimizer=Optimizer(optimizer), **keywords
        )

    return Target(name, make_run, tuple(OPTIMIZERS))


def our_threads() -> list[str]:
    """The names of bttlab's threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(THREADS)]


def until(condition, seconds: float = 60.0) -> bool:
    """Wait for a condition; whether it came true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False
