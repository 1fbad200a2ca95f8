"""Runs of the methods lab in a dashboard."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from bttlab.experiments.keep import keep_methods
from bttlab.lab.dashboard_runs import EVALUATIONS, DashboardRun
from bttlab.lab.dashboard_targets import Target, torch_meter
from bttlab.lab.workload import Workload
from bttlab.model import predict_in_batches
from bttlab.quantities import Quantity
from bttlab_methods import Result, Setting, Training, check_combination, parse, run_methods
from bttlab_methods.training import LEARNING_RATE

OnResult = Callable[[Result], None]


class MethodRun(DashboardRun):
    """Training with methods, in batches.

    Parameters
    ----------
    *common
        As for `DashboardRun`, the workload of the dense model. The learning rate is that of dense AdamW; every method's
        own rate changes in proportion.
    methods : str
        As `bttlab_methods.parse` takes it.
    device : {"cpu", "cuda"}
    on_result : callable, optional
        Gets the result, from the run's thread.
    """

    follows_learning_rate = False

    def __init__(self, *common: Any, methods: str, device: str, on_result: OnResult | None = None):
        super().__init__(*common)
        self._methods, self._on_result = parse(methods), on_result
        check_combination(self._methods, device)
        work = self._workload
        self._setting = Setting(work.corpus, work.config, self.total, seed=work.seed, device=device)
        self._training: Training | None = None
        self._evaluated, self._since = 0, 0.0

    def _train(self) -> None:
        self._since = time.perf_counter()
        if self._setting.device == "cpu":
            torch.set_num_threads(1)
        factor = self.learning_rate / LEARNING_RATE
        setting = replace(self._setting, rate_factor=factor)
        result = run_methods(setting, self._methods, self._on_batch, self._stop, ("dev",), self._begin)
        if result.samples == self.total:
            keep_methods(result, self.begun, factor)
        self.memory = {"tensors": Quantity(**result.memory["peak"])}
        if self._on_result is not None:
            self._on_result(result)

    def _begin(self, training: Training) -> None:
        self._training = training
        self._since = time.perf_counter()

    def _on_batch(self, losses: np.ndarray) -> None:
        seconds = time.perf_counter() - self._since
        self.meter.advance(self._workload.train[: len(losses)], seconds)
        self._add(losses, seconds)
        part = self.count * EVALUATIONS // self.total
        if part > self._evaluated:
            self._evaluated = part
            with self._training.aside():
                self._evaluate(partial(predict_in_batches, self._training.model))
        if not self._unpaused.is_set():
            with self._training.aside():
                self._unpaused.wait()
        self._since = time.perf_counter()


def method_target(
    methods: str, workload: Workload, device: str | None = None, on_result: OnResult | None = None
) -> Target:
    """Return a dashboard's target that trains with methods, on CUDA where there is one.

    Parameters
    ----------
    methods : str
        As `bttlab_methods.parse` takes it.
    workload : Workload
        Of the dense model.
    device : {"cpu", "cuda"}, optional
    on_result : callable, optional
        Gets a `Result` when a run has ended.

    Raises
    ------
    bttlab_methods.MethodError
        If the methods are unknown, do not combine, or do not run here.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_combination(parse(methods), device)

    def make_run(total: int, learning_rate: float) -> DashboardRun:
        common = methods, total, learning_rate, torch_meter(device), workload
        return MethodRun(*common, methods=methods, device=device, on_result=on_result)

    return Target(methods, make_run)
