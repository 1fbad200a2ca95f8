"""Results on disk, and side by side."""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bttlab.baseline.receipt import READING, Receipt, details_of, quantities_of
from bttlab.util.locks import changing
from bttlab.util.places import ROOT
from bttlab.util.quantities import measured
from bttlab.util.settings import RecordError, from_values
from bttlab_methods.run import Result
from bttlab_methods.setting import Setting
from bttlab_methods.training import DENSE

FOLDER = ROOT / "data" / "methods"
RECORDS = {"atis.json": DENSE, "atis_tensor.json": "tensor"}  # record: the methods that its others are compared with
ADAPTERS = FOLDER / "atis_adapters.json"  # of a model whose frozen parameters fit the card
PROCESSES = FOLDER / "airline_processes.json"  # of the methods of two processes, and dense: peaks alone
GONE = FOLDER / "gone.json"  # results of methods that an earlier version had
NAMED = ("atis", "snips", "airline")  # corpora that --data takes by name
SCORES = {"intent_accuracy": "intent", "slot_f1": "slot F1", "frame_accuracy": "frame"}


class Results:
    """Results in the order in which they were found; with a path, on disk after each."""

    def __init__(self, results: list[Result], path: Path | None = None):
        self.results, self._path = results, path

    @classmethod
    def read(cls, path: str | os.PathLike | None) -> "Results":
        """Return what a file holds, which may not be there yet; of no file, nothing.

        Raises RecordError if the file is not such a record.
        """
        if path is None:
            return cls([])
        path = Path(path)
        if not path.exists():
            return cls([], path)
        try:
            return cls(from_values(list[Result], details_of(path)), path)
        except (ValueError, RecordError) as error:
            raise RecordError(f"{path} is no record of methods ({error}); give another place with --record") from None

    def find(self, methods: str, setting: Setting, split: str) -> Result | None:
        """Return the result of the same methods in the same setting with scores of a split, if there is one.

        The corpus must have the same content. A result of an older version, without the SHA-256 of its corpus, is not
        returned.
        """
        wanted, digest = _wanted(methods, setting), setting.corpus_sha256
        return next((one for one in self._of(wanted) if one.corpus_sha256 == digest and split in one.scores), None)

    def is_undigested(self, methods: str, setting: Setting) -> bool:
        """Return whether there is such a result without the SHA-256 of its corpus."""
        return any(not one.corpus_sha256 for one in self._of(_wanted(methods, setting)))

    def _of(self, wanted: tuple) -> list[Result]:
        return [one for one in self.results if _key(one) == wanted]

    def add(self, result: Result) -> None:
        """Keep a result in the place of one of the same run; in the file, beside those of other processes.

        It also replaces a result of the same run without the SHA-256 of its corpus.
        """
        self.results = [*(one for one in self.results if not _is_replaced(one, result)), result]
        if self._path is not None:
            with changing(self._path.parent):
                kept = (one for one in Results.read(self._path).results if not _is_replaced(one, result))
                receipt_of([*kept, result]).write(self._path, "--record")


def receipt_of(results: Sequence[Result]) -> Receipt:
    """Return the receipt of results, with the scores of each run and, where options name it, the command.

    On another processor PyTorch rounds otherwise, and trains apart: no repetition has to be equal.
    """
    figures, parts, corpora = {}, {}, {}
    digests: dict[str, set[str]] = {}
    for one in results:
        digests.setdefault(one.corpus, set()).add(one.corpus_sha256)
    for one in results:
        is_named = len(digests[one.corpus]) == 1  # else the name says two corpora
        corpus = one.corpus if is_named else f"{one.corpus} {one.corpus_sha256[:12]}".strip()
        if one.corpus_sha256:
            corpora[corpus] = one.corpus_sha256
        model = f"{corpus}, {one.encoders}-ENC{f' {one.model}' if one.model else ''}"
        name = f"{one.methods}, {model}, {one.samples} samples, batch {one.batch}, seed {one.seed}, {one.device}"
        is_usual = (one.rate_factor, one.warmup) == (Result.rate_factor, Result.warmup)
        name += "" if is_usual else f", rate x {one.rate_factor:g}, warm-up {one.warmup:g}"
        for split, scores in one.scores.items():
            how = f"on the {split} split after {one.samples:,} samples, PyTorch on {one.device}"
            figures |= {f"{name}.{split}.{key}": measured(scores[key], "1", how) for key in SCORES if key in scores}
        if not one.model and one.corpus in NAMED and is_named and is_usual:  # of others no option tells
            options = {"--data": one.corpus, "--encoders": one.encoders, "--budget": one.samples, "--batch": one.batch}
            options |= {"--seeds": one.seed, "--split": list(one.scores)[-1], "--device": one.device}
            parts[name] = ["methods", "run", one.methods, *(str(each) for pair in options.items() for each in pair)]
    return Receipt(
        title="ways to train with less",
        command=["python", "-m", "bttlab", "methods", "run"],
        figures=quantities_of(figures, READING),
        corpora=corpora,
        parts=parts,
        details=[asdict(each) for each in results],
    )


def _wanted(methods: str, setting: Setting) -> tuple:
    of_model = setting.corpus.name, setting.config.encoders, setting.own_sizes
    of_training = setting.samples, setting.batch, setting.seed, setting.device, setting.rate_factor, setting.warmup
    return methods, *of_model, *of_training


def _is_replaced(old: Result, new: Result) -> bool:
    return _key(old) == _key(new) and old.corpus_sha256 in ("", new.corpus_sha256)


def _key(result: Result) -> tuple:
    of_model = result.corpus, result.encoders, result.model
    of_training = result.samples, result.batch, result.seed, result.device, result.rate_factor, result.warmup
    return result.methods, *of_model, *of_training


def comparison(results: Sequence[Result], split: str):
    """Return a table of results on a split, a line for each combination: the mean over its seeds.

    All are measured; time and energy of an epoch are extrapolated from the samples of the run.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("methods", overflow="fold", min_width=14)
    for column in ("seeds", *SCORES.values(), "trained", "MB", "s", "J"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, group in by_methods(results).items():
        scores = (f"{100 * mean(group, lambda result, key=key: result.scores[split][key]):.1f}" for key in SCORES)
        costs = f"{mean(group, peak) / 1e6:.1f}", f"{mean(group, seconds_per_epoch):.1f}", joules(group)
        table.add_row(f"{name}{pretraining(group)}", str(len(group)), *scores, f"{group[0].trained:,}", *costs)
    table.caption = f"Measured. {split.capitalize()} split, per cent; parameters trained; peak memory as counted "
    table.caption += (
        "storages of a step; time (the processor's) and energy of an epoch, extrapolated from the run's samples."
    )
    return table


def by_methods(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results of each combination, which differ in their seeds alone.

    Keys are the methods. If the results are not all of one setting, keys also have what differs, as "dense, 2,000
    samples".
    """
    settings = [_words_of(one) for one in results]
    differing = [place for place, words in enumerate(zip(*settings, strict=True)) if len(set(words)) > 1]
    groups: dict[str, list[Result]] = {}
    for one, words in zip(results, settings, strict=True):
        groups.setdefault(", ".join([one.methods, *(words[place] for place in differing)]), []).append(one)
    return groups


def _words_of(result: Result) -> list[str]:
    """Return the setting of a result in words, without the seed."""
    model = ", ".join(f"{name} {value}" for name, value in result.model.items())
    return [
        result.corpus,
        f"SHA-256 {result.corpus_sha256[:12] or 'unknown'}",
        f"{result.encoders}-ENC",
        model or "sizes of the paper",
        f"{result.samples:,} samples",
        f"batch {result.batch}",
        result.device,
        f"rate x {result.rate_factor:.3g}",
        f"warm-up {result.warmup:g}",
    ]


def pretraining(group: Sequence[Result]) -> str:
    """Return what a row says behind its name if its runs began from a trained model."""
    samples = group[0].facts.get("pretraining_samples")
    return f" (pretrained on {samples:,} samples)" if samples else ""


def mean(group: Sequence[Result], value: Callable[[Result], Any]) -> float:
    return statistics.fmean(map(value, group))


def deviation(group: Sequence[Result], value: Callable[[Result], Any]) -> float:
    """Return the sample standard deviation over the seeds; 0 for a single one."""
    return statistics.stdev(map(value, group)) if len(group) > 1 else 0.0


def frontier(records: Mapping[float, Sequence[Result]]) -> list[str]:
    """Return lines of the methods that no other beats in both peak memory and slot F1 on test, and of dense training.

    `records` has results by their number of epochs. Scores and seconds are means over the seeds with their sample
    standard deviation; the seconds are those of all of a run's training, its pretraining included. All measured.
    """
    found = []
    for epochs, results in records.items():
        for name, group in by_methods(results).items():

            def seconds(result: Result, epochs: float = epochs) -> float:
                return epochs * seconds_per_epoch(result) + result.facts.get("pretraining_seconds", 0.0)

            size, score = mean(group, peak), mean(group, slot_f1)
            line = f"{size / 1e6:6.1f} MB  slot F1 {score:6.1%} ± {deviation(group, slot_f1):5.1%}"
            line += f"  {mean(group, seconds):5.0f} ± {deviation(group, seconds):3.0f} s"
            found.append((size, score, name, f"{line}  {name}, {epochs:g} epochs, n = {len(group)}"))
    kept = [
        (size, line)
        for size, score, name, line in found
        if name == DENSE or not any(s <= size and f >= score and (s, f) != (size, score) for s, f, *_ in found)
    ]
    return [line for _, line in sorted(kept)]


def peak(result: Result) -> float:
    return result.memory["peak"]["value"]


def seconds_per_epoch(result: Result) -> float:
    return result.seconds_per_epoch["value"]


def slot_f1(result: Result) -> float:
    return result.scores["test"]["slot_f1"]


def joules(group: Sequence[Result]) -> str:
    """Return the mean energy of an epoch, in joules, or a dash where nothing told it."""
    if any(result.joules_per_epoch["value"] is None for result in group):
        return "-"
    return f"{mean(group, lambda result: result.joules_per_epoch['value']):.0f}"


def read_gone() -> dict[str, list[Result]]:
    """Return the results of methods that are no longer here, by method: each of one setting, not of the same."""
    results = Results.read(GONE).results
    return {name: [one for one in results if one.methods == name] for name in dict.fromkeys(r.methods for r in results)}


def read_records() -> dict[str, list[Result]]:
    return {name: Results.read(FOLDER / name).results for name in RECORDS}
