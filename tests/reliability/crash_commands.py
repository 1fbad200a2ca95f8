"""`bttlab eval` and `bttlab sweep` killed with SIGKILL at random moments: whole results or none."""

import random
import tempfile
import time
from pathlib import Path

import yaml

from bttlab.experiments.keep import flat
from bttlab.experiments.record import read_run
from reliability.outcome import Outcome, attempts
from reliability.training_process import Command
from tiny_runs import settings, train, write_corpus

EPOCHS, TRIALS = 60, 4  # of a sweep
EVALUATIONS = 30  # for each sweep, which takes long
SCORES = ("dev.mean_loss", "dev.slot_f1", "test.mean_loss", "test.slot_f1", "samples")
OLD = "what was predicted before\n"


def trial(count: int) -> Outcome:
    """Kill `count` evaluations, and for every thirtieth a sweep, which is then started again."""
    draw, failures = random.Random(0), []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        evaluation, sweep = _Evaluation(folder), _Sweep(folder)
        for number in attempts(count):
            failures += [f"eval {number}: {fault}" for fault in evaluation.kill(draw)]
            if number % EVALUATIONS == 0:
                failures += [f"sweep {number}: {fault}" for fault in sweep.kill(draw)]
    tried = (
        "`bttlab eval --predictions FILE` and `bttlab sweep` (4 trials, 2 workers) with all their processes killed by "
        "SIGKILL at a random moment. The file is as before or as of an unbroken evaluation; the sweep, started again, "
        "comes to the scores of an unbroken one"
    )
    figures = {"evaluations killed": evaluation.killed, "sweeps killed": sweep.killed}
    return Outcome("crash of eval and sweep", tried, number + 1 + sweep.attempts, failures, figures)


def _finished(*arguments: str | Path, new: bool = False) -> float:
    """Run a command to its end; returns the seconds that it took."""
    begin, process = time.monotonic(), Command(*arguments, new=new)
    if process.wait() != 0:
        raise RuntimeError(f"bttlab {arguments[0]} ended with exit code {process.returncode}")
    return time.monotonic() - begin


def _killed(delay: float, *arguments: str | Path, new: bool = False) -> bool:
    """Kill a command and its processes after some time; returns False if it had ended by then."""
    process = Command(*arguments, new=new)
    if process.wait(delay) is not None:
        return False
    process.kill()
    return True


class _Evaluation:
    def __init__(self, folder: Path) -> None:
        train(folder / "run", write_corpus(folder / "corpus"))
        self._file, self.killed = folder / "predictions.txt", 0
        self._command = "eval", "--run", folder / "run", "--device", "reference", "--predictions", self._file
        _finished(*self._command)  # imports for those that are forked from this process
        self._seconds = _finished(*self._command)
        self._whole = self._file.read_text()

    def kill(self, draw: random.Random) -> list[str]:
        self._file.write_text(OLD)
        self.killed += _killed(draw.uniform(0, 1.1) * self._seconds, *self._command)
        return [] if self._file.read_text() in (OLD, self._whole) else ["the predictions are torn"]


class _Sweep:
    def __init__(self, folder: Path) -> None:
        fixed = flat(settings(write_corpus(folder / "sweep_corpus"), epochs=EPOCHS))
        del fixed["seed"]
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in fixed.items()}
        self._spec, self._folder, self.killed, self.attempts = folder / "tiny.yaml", folder, 0, 0
        self._spec.write_text(yaml.safe_dump({"fixed": values, "vary": {"seed": list(range(TRIALS))}}))
        self._seconds = _finished(*self._command("unbroken"), new=True)
        self._expected = self._scores("unbroken")
        if len(self._expected) != TRIALS or any(None in scores for scores in self._expected.values()):
            raise RuntimeError(f"the unbroken sweep has no scores of {TRIALS} trials: {self._expected}")

    def _command(self, name: str) -> tuple[str | Path, ...]:
        return "sweep", self._spec, "--workers", "2", "--out", self._folder / name

    def _scores(self, name: str) -> dict[int, tuple]:
        """Scores of each trial by its seed; None for those that a record lacks."""
        records = [read_run(path.parent) for path in (self._folder / name).rglob("run.json")]
        return {
            record.configuration["seed"]: tuple(record.figures.get(score, {}).get("value") for score in SCORES)
            for record in records
        }

    def kill(self, draw: random.Random) -> list[str]:
        name = f"killed{self.attempts}"
        self.attempts += 1
        self.killed += _killed(draw.uniform(0.2, 1.0) * self._seconds, *self._command(name), new=True)
        _finished(*self._command(name), new=True)
        found = self._scores(name)
        return [] if found == self._expected else [f"{found} is not {self._expected}"]
