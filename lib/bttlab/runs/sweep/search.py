"""The trials of a sweep: a grid, Optuna's random draws, or what its TPE proposes from the results of those before.

TPE's study is kept in the sweep's folder.
"""

import itertools
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from bttlab.runs.recipe import OPTIMIZER_KEYS
from bttlab.runs.settings import RunError
from bttlab.runs.sweep.pruning import STUDY_FILE, StudyTrial
from bttlab.runs.sweep.spec import MOST_TRIALS, Range, SpecError, SweepSpec
from bttlab.runs.sweep.trials import Trial, TrialMaker, digest_of, takes_fractions
from bttlab.util.errors import BttlabError
from bttlab.util.files import cut_torn_line

MOST_REPEATS = 100  # proposals of trials that have run already, one after another, after which a search is at its end


class Search:
    """The trials of a sweep, in order.

    Raises SpecError if a value is outside its range: every one is tried before anything is written.
    """

    def __init__(self, spec: SweepSpec, maker: TrialMaker):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec, self._maker = spec, maker
        # Lists are proposed by their index: Optuna's categories are plain values.
        self._distributions = {key: _distribution(key, values) for key, values in spec.vary.items()}
        if spec.search == "optuna":
            trials = [maker.make(varied) for varied in _corners(spec)]
            self.planned, self.total = [], spec.trials or 0  # trials in all
            self.repeated = 0  # combinations or draws whose trial another is, too
        else:
            proposals = _grid(spec) if spec.search == "grid" else self._draws()
            trials = [maker.make(self._values(params)) for params in proposals]
            self.planned = [*{trial.id: trial for trial in trials}.values()]
            self.total = len(self.planned)
            self.repeated = len(trials) - self.total
        for key in (*spec.fixed, *spec.vary):
            if key in OPTIMIZER_KEYS and all(key not in trial.configuration for trial in trials):
                names = dict.fromkeys(trial.configuration["optimizer"] for trial in trials)
                raise SpecError(
                    f"{key} has no effect with optimizer {' or '.join(names)}; leave it out, or name another"
                )
        if spec.pruner != "none" and all(trial.settings is None or trial.settings.epochs == 1 for trial in trials):
            raise SpecError("pruner has no effect on trials of one epoch; leave it out, or give more epochs")
        self._rest = iter(self.planned)
        self.note = ""  # for the user, from `open`
        self._study: optuna.Study | None = None  # of TPE or a pruner, from `open`
        self._begun: dict[str, int] = {}  # number of the study's trial, by id
        self._left: list[int] = []  # numbers of trials that an earlier process did not end

    def open(self, folder: Path) -> list[Trial]:
        """Open the study of TPE or a pruner in a folder, or make it; return the trials that have ended there.

        `note` says what was lost of its log. Raises RunError if it is no log of Optuna; OSError if it cannot be
        written.
        """
        if self._spec.search != "optuna" and self._spec.pruner == "none":
            return []
        path = folder / STUDY_FILE
        if cut := cut_torn_line(path):  # Optuna would append to the torn line, and never read it again
            self.note = f"the last line of {path} was torn ({cut} bytes), and is removed; its trial is proposed again"
        try:
            return self._open(path)
        except (BttlabError, OSError):
            raise
        except Exception as error:  # Optuna reads the log without checks of its own
            raise RunError(
                f"{path} is no log of Optuna ({type(error).__name__}: {error}); remove it, and run the same command "
                "again: finished trials stay, and count when they are proposed"
            ) from None

    def _open(self, path: Path) -> list[Trial]:
        spec = self._spec
        names = ["vary", "fixed", "kind", "search", "seed", "objective", "maximize"]
        names += ["pruner"] * (spec.pruner != "none")
        name = digest_of({key: value for key, value in asdict(spec).items() if key in names})
        storage = JournalStorage(JournalFileBackend(str(path)))
        direction = "maximize" if spec.maximize else "minimize"
        self._study = optuna.create_study(storage=storage, study_name=name, direction=direction, load_if_exists=True)
        before = self._study.trials
        if spec.search != "optuna":  # its trials are planned
            self._begun = {trial.user_attrs["id"]: trial.number for trial in before if "id" in trial.user_attrs}
            return []
        self._study.sampler = TPESampler(seed=spec.seed + len(before), constant_liar=True)
        done = [trial for trial in before if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
        self._left = [trial.number for trial in before if trial.state == TrialState.RUNNING]
        trials = [self._maker.make(self._values(trial.params)) for trial in done]
        self._begun = {trial.id: asked.number for trial, asked in zip(trials, done, strict=True)}
        return trials

    def next(self) -> Trial | None:
        """Return the next trial, or None at the end, or if the proposals only repeat themselves."""
        if self._study is None or self._spec.search != "optuna":
            trial = next(self._rest, None)
            if trial is not None and self._study is not None:
                self._number(self._study, trial)
            return trial
        for _ in range(MOST_REPEATS):
            if self._left:
                number = self._left.pop(0)
                params = self._study.trials[number].params
            elif len(self._begun) >= self.total:
                return None
            else:
                asked = self._study.ask(self._distributions)
                number, params = asked.number, asked.params
            if params.keys() == self._distributions.keys():
                trial = self._maker.make(self._values(params))
                if trial.id not in self._begun:
                    self._begun[trial.id] = number
                    return trial
            self._study.tell(number, state=TrialState.FAIL)
        return None

    def _number(self, study: optuna.Study, trial: Trial) -> None:
        """Give a planned trial a number in the study, unless it has one and has not failed."""
        number = self._begun.get(trial.id)
        if number is None or study.trials[number].state == TrialState.FAIL:
            asked = study.ask()
            asked.set_user_attr("id", trial.id)
            self._begun[trial.id] = asked.number

    def place(self, trial: Trial) -> StudyTrial | None:
        """Return where a trial reports its epochs; None without a pruner."""
        if self._study is None or self._spec.pruner == "none":
            return None
        return StudyTrial(self._study.study_name, self._begun[trial.id], self._spec.objective or "")

    def tell(self, trial: Trial, value: float | None, is_pruned: bool = False) -> None:
        """Report a trial's objective, None if it failed: TPE learns from it, and the pruner compares with it."""
        if self._study is not None and trial.id in self._begun:
            state = TrialState.FAIL if value is None or not math.isfinite(value) else None
            state = TrialState.PRUNED if is_pruned else state
            self._study.tell(self._begun[trial.id], None if state else value, state=state, skip_if_finished=True)

    def _values(self, params: dict[str, Any]) -> dict[str, Any]:
        vary = self._spec.vary
        return {key: of[param] if isinstance(of := vary[key], list) else param for key, param in params.items()}

    def _draws(self) -> list[dict[str, Any]]:
        """Return the draws of a random search: the same for the same seed."""
        study = optuna.create_study(sampler=RandomSampler(self._spec.seed))
        return [study.ask(self._distributions).params for _ in range(self._spec.trials or 0)]


def _distribution(key: str, values: list | Range) -> BaseDistribution:
    if isinstance(values, list):
        return CategoricalDistribution(list(range(len(values))))
    if not takes_fractions(key):
        if not float(values.low).is_integer() or not float(values.high).is_integer():
            raise SpecError(f"{key}: low {values.low!r}, high {values.high!r}: {key} takes whole numbers")
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def _grid(spec: SweepSpec) -> list[dict[str, Any]]:
    """Return every combination, the last key changing fastest."""
    lists = [values for values in spec.vary.values() if isinstance(values, list)]  # a grid has no ranges
    count = math.prod(map(len, lists))
    if count > MOST_TRIALS:
        raise SpecError(f"the grid has {count:,} combinations, more than {MOST_TRIALS:,}; take search: random")
    combinations = itertools.product(*(range(len(values)) for values in lists))
    return [dict(zip(spec.vary, combination, strict=True)) for combination in combinations]


def _corners(spec: SweepSpec) -> list[dict[str, Any]]:
    """Return every value and every end of a range once, with the other keys at their first: to check ranges."""
    choices = {key: v if isinstance(v, list) else [v.low, v.high] for key, v in spec.vary.items()}
    first = {key: values[0] for key, values in choices.items()}
    return [first | {key: value} for key, values in choices.items() for value in values]
