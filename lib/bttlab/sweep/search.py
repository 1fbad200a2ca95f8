"""Which trial comes next: those of a list, or what Optuna proposes from those before."""

import sys
from collections.abc import Iterable
from typing import Any, Protocol

from bttlab.experiments.record import RunRecord
from bttlab.sweep.spec import Range, SpecError, SweepSpec
from bttlab.sweep.trials import Trial, TrialMaker


class Search(Protocol):
    """A source of trials.

    Attributes
    ----------
    total : int
        Trials in all, as far as is known.
    """

    total: int

    def next(self) -> Trial | None:
        """Return a trial to run, or None if there is none (any more)."""

    def tell(self, trial: Trial, value: float | None) -> None:
        """Hear a trial's objective; None if it failed."""


class Listed:
    """The trials of a grid or a random search."""

    def __init__(self, trials: Iterable[Trial]):
        self._trials = list(trials)
        self.total = len(self._trials)
        self._next = iter(self._trials)

    def next(self) -> Trial | None:
        """Return the next."""
        return next(self._next, None)

    def tell(self, trial: Trial, value: float | None) -> None:
        """Change nothing."""


class Proposed:
    """Trials that Optuna's TPE proposes.

    Parameters
    ----------
    spec : SweepSpec
    maker : TrialMaker
    before : iterable of RunRecord
        Trials of this sweep that have run already; they count, and Optuna learns from them.

    Raises
    ------
    SpecError
        If Optuna is not installed, or a value is outside its range.
    """

    def __init__(self, spec: SweepSpec, maker: TrialMaker, before: Iterable[RunRecord] = ()):
        try:
            import optuna
        except ModuleNotFoundError:
            raise SpecError(
                f"search is optuna, which is not installed: install it with {sys.executable} -m pip install optuna, or "
                "take search: random"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec, self._maker, self.total = spec, maker, spec.trials
        # Lists are proposed by their index: Optuna's categories are plain values.
        self._distributions = {key: _distribution(optuna, values) for key, values in spec.vary.items()}
        for varied in _corners(spec):
            maker.make(varied)
        direction = "maximize" if spec.maximize else "minimize"
        sampler = optuna.samplers.TPESampler(seed=spec.seed, constant_liar=True)
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        self._asked: dict[str, Any] = {}
        self._known = {record.id for record in before}
        self._count = 0
        for record in before:
            self._learn(optuna, record)

    def _learn(self, optuna: Any, record: RunRecord) -> None:
        params = {}
        for key, values in self._spec.vary.items():
            value = record.configuration.get(key)
            if isinstance(values, list):
                if value not in values:
                    return
                value = values.index(value)
            elif not isinstance(value, int | float) or not values.low <= value <= values.high:
                return
            params[key] = value
        objective = record.value(self._spec.objective)
        if record.status == "complete" and objective is not None:
            done = optuna.trial.create_trial(params=params, distributions=self._distributions, value=objective)
            self._study.add_trial(done)
            self._count += 1

    def next(self) -> Trial | None:
        """Return what Optuna proposes, given what it has been told so far."""
        while self._count < self.total:
            self._count += 1
            asked = self._study.ask(self._distributions)
            varied = {
                key: values[asked.params[key]] if isinstance(values, list) else asked.params[key]
                for key, values in self._spec.vary.items()
            }
            trial = self._maker.make(varied)
            if trial.id not in self._known:
                self._known.add(trial.id)
                self._asked[trial.id] = asked
                return trial
        return None

    def tell(self, trial: Trial, value: float | None) -> None:
        """Let Optuna learn."""
        import optuna

        asked = self._asked.pop(trial.id, None)
        if asked is not None:
            state = optuna.trial.TrialState.FAIL if value is None else None
            self._study.tell(asked, value, state=state)


def _distribution(optuna: Any, values: list | Range) -> Any:
    if isinstance(values, list):
        return optuna.distributions.CategoricalDistribution(list(range(len(values))))
    kind = optuna.distributions.IntDistribution if values.integer else optuna.distributions.FloatDistribution
    return kind(values.low, values.high, log=values.log)


def _corners(spec: SweepSpec) -> list[dict[str, Any]]:
    """Every value and every end of a range once, the other keys at their first: what is out of range shows here."""
    choices = {key: v if isinstance(v, list) else [v.low, v.high] for key, v in spec.vary.items()}
    first = {key: values[0] for key, values in choices.items()}
    return [first | {key: value} for key, values in choices.items() for value in values]
