"""Choose the next trial: from a list, or by Optuna from the trials before."""

from collections.abc import Iterable
from typing import Any

from bttlab.runs.record import COMPLETE, RunRecord
from bttlab.sweep.spec import Range, SpecError, SweepSpec
from bttlab.sweep.trials import Trial, TrialMaker
from bttlab.util.plugins import missing_package

MOST_REPEATS = 100  # proposals of trials that have run already, one after another, after which a search is at its end


class Search:
    """The trials of a grid or a random search.

    Attributes
    ----------
    total : int
        Trials in all.
    """

    def __init__(self, trials: Iterable[Trial]):
        self._trials = list(trials)
        self.total = len(self._trials)
        self._next = iter(self._trials)

    def next(self) -> Trial | None:
        """Return a trial to run, or None at the end."""
        return next(self._next, None)

    def tell(self, trial: Trial, value: float | None) -> None:
        """Learn a trial's objective, None if it failed; a list learns nothing."""


class Proposed(Search):
    """Trials that Optuna's TPE proposes.

    Parameters
    ----------
    before : iterable of RunRecord
        Trials in the sweep's folder: Optuna learns from the complete ones of this search, and the begun ones run
        first.

    Attributes
    ----------
    done : list of RunRecord
        Those of `before` that are complete trials of this search.

    Raises
    ------
    SpecError
        If Optuna is not installed, or a value is outside its range.
    """

    def __init__(self, spec: SweepSpec, maker: TrialMaker, before: Iterable[RunRecord] = ()):
        try:
            import optuna
        except ModuleNotFoundError as error:
            raise SpecError(f"{missing_package(error, 'search: optuna')}, or take search: random") from None
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
        self._known: set[str] = set()
        self.done: list[RunRecord] = []
        for record in before:
            params = self._params(record)
            if params is None:
                continue
            if record.status != COMPLETE:
                self._study.enqueue_trial(params)
                continue
            self.done.append(record)
            self._known.add(record.id)
            value = record.value(spec.objective)
            if value is not None:
                trial = optuna.trial.create_trial(params=params, distributions=self._distributions, value=value)
                self._study.add_trial(trial)

    def _params(self, record: RunRecord) -> dict[str, Any] | None:
        """Return Optuna's parameters of a trial; None if this search cannot have proposed it."""
        varied = {key: record.configuration.get(key) for key in self._spec.vary}
        for key, values in self._spec.vary.items():
            inside = varied[key] in values if isinstance(values, list) else _inside(varied[key], values)
            if not inside:
                return None
        if self._maker.make(varied).id != record.id:
            return None
        return {k: v.index(varied[k]) if isinstance(v, list) else varied[k] for k, v in self._spec.vary.items()}

    def next(self) -> Trial | None:
        """Return Optuna's next proposal; None at the end, or if it only repeats itself."""
        for _ in range(MOST_REPEATS if len(self._known) < self.total else 0):
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
            self._tell(asked, None)
        return None

    def tell(self, trial: Trial, value: float | None) -> None:
        """Report the objective to Optuna."""
        asked = self._asked.pop(trial.id, None)
        if asked is not None:
            self._tell(asked, value)

    def _tell(self, asked: Any, value: float | None) -> None:
        from optuna.trial import TrialState

        self._study.tell(asked, value, state=TrialState.FAIL if value is None else None)


def _inside(value: Any, values: Range) -> bool:
    return isinstance(value, int | float) and values.low <= value <= values.high


def _distribution(optuna: Any, values: list | Range) -> Any:
    if isinstance(values, list):
        return optuna.distributions.CategoricalDistribution(list(range(len(values))))
    kind = optuna.distributions.IntDistribution if values.integer else optuna.distributions.FloatDistribution
    return kind(values.low, values.high, log=values.log)


def _corners(spec: SweepSpec) -> list[dict[str, Any]]:
    """Return every value and every end of a range once, with the other keys at their first: to check ranges."""
    choices = {key: v if isinstance(v, list) else [v.low, v.high] for key, v in spec.vary.items()}
    first = {key: values[0] for key, values in choices.items()}
    return [first | {key: value} for key, values in choices.items() for value in values]
