"""A corpus of a few dozen utterances, a model of a few thousand parameters, and runs of both."""

import json
import random
from pathlib import Path

from bttlab.data import load_corpus
from bttlab.model import LEARNING_RATES, ModelConfig, Optimizer, ReferenceTrainer
from bttlab.runs import RunSettings, resume_run, start_run

SIZES = {"train": 24, "dev": 6, "test": 6}
CONFIG = ModelConfig(
    encoders=1,
    hidden_size=16,
    heads=2,
    vocabulary_size=27,
    intents=3,
    slots=5,
    linear_out_modes=(2, 2, 4),
    linear_in_modes=(4, 2, 2),
    linear_rank=2,
    embedding_row_modes=(3, 3, 3),
    embedding_column_modes=(2, 2, 4),
    embedding_rank=2,
)
DEVICE = "the PyTorch reference"


def write_corpus(folder: Path, seed: int = 0) -> Path:
    """Write a corpus in which "to" makes the next word a B-city, and the first word tells the intent."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    (folder / "intent_label.txt").write_text("UNK\nflight\nfare\n")
    (folder / "slot_label.txt").write_text("PAD\nUNK\nO\nB-city\nI-city\n")
    for split, count in SIZES.items():
        words, tags, intents = [], [], []
        for _ in range(count):
            intent = draw.choice(["flight", "fare"])
            words.append([intent[:3], "please", "to", draw.choice("abcdefgh"), draw.choice("xyz")])
            tags.append(["O", "O", "O", "B-city", "I-city"])
            intents.append(intent)
        (folder / split).mkdir()
        for name, lines in (("seq.in", map(" ".join, words)), ("seq.out", map(" ".join, tags)), ("label", intents)):
            (folder / split / name).write_text("\n".join(lines) + "\n")
    return folder


def settings(corpus: Path, optimizer: str = "sgd", **values) -> RunSettings:
    values = {"config": CONFIG, "learning_rate": 10 * LEARNING_RATES[optimizer], "epochs": 3} | values
    return RunSettings(data=str(corpus), device="reference", optimizer=Optimizer(optimizer), **values)


def train(folder: Path, corpus: Path, optimizer: str = "sgd", trainer=None, **values):
    """Train a new run; returns its result."""
    run = start_run(folder, settings(corpus, optimizer, **values), load_corpus(corpus))
    return run.train(trainer or ReferenceTrainer(CONFIG), DEVICE)


def resume(folder: Path, trainer=None, **changes):
    """Continue a run; returns its result."""
    return resume_run(folder, changes).train(trainer or ReferenceTrainer(CONFIG), DEVICE)


def metrics(folder: Path) -> list[dict]:
    """Return the metrics of a run without times, which differ between runs of equal bits."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "samples_per_second", "sha256")} for line in lines]


class Interrupter(ReferenceTrainer):
    """A trainer in whose `at`-th call, of `train` or `predict`, something happens; then the call goes on."""

    def __init__(self, at: int, happening):
        super().__init__(CONFIG)
        self.at, self.happening, self.calls = at, happening, 0

    def train(self, *arguments):
        self._count()
        return super().train(*arguments)

    def predict(self, *arguments):
        self._count()
        return super().predict(*arguments)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.happening()
