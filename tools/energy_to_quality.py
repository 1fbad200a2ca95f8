"""Count the samples of ATIS that training needs to a given dev slot F1: python tools/energy_to_quality.py [RECORD].

For each format and batch size, find the optimizer and rate that reach the highest target with the fewest samples (with
a separate seed), then train with them and ten other seeds. Tensor-compressed training with one sample a step runs on
the emulated card, all else in PyTorch. The rate is constant. An existing record is continued.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bttlab.baseline.receipt import READING, SAME, ProgramUsed, Receipt, details_of, quantities_of
from bttlab.compiler.program import compile
from bttlab.data import Corpus, Samples, Vocabulary, encode, epoch_order, load_corpus
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.lab.comparison import RECORD, TARGETS
from bttlab.model import ModelConfig, Optimizer, Transformer, batch_losses, equal_length_batches, predict_in_batches
from bttlab.runs.devices import open_trainer
from bttlab.runs.evaluation import scores_of
from bttlab.runs.record import versions
from bttlab.util.terminal import say

TUNING_SEED, SEEDS = 100, range(110, 120)
EVERY = 256  # samples between two evaluations
MOST = 4 * EPOCH_SAMPLES
TRIED = {  # format, batch: learning rates by optimizer
    ("dense", 1): {"adamw": (5e-5, 1e-4, 2e-4), "sgd": (4e-3, 1e-2, 2.5e-2)},
    ("tensor", 1): {"adamw": (3e-4, 6e-4, 1.2e-3), "sgd": (4e-3, 1e-2, 2.5e-2)},
    ("dense", 16): {"adamw": (1e-4, 2e-4, 4e-4, 8e-4), "sgd": (2e-2, 5e-2, 1e-1)},
    ("tensor", 16): {"adamw": (5e-4, 1e-3, 2e-3, 4e-3), "sgd": (2e-2, 5e-2, 1e-1)},
}
CARD_PART = "tensor batch 1"  # of the receipt: what promises bits
Train = Callable[[Samples], None]
F1 = Callable[[], float]


def on_card(config: ModelConfig, optimizer: Optimizer, rate: float, seed: int, dev: Samples, corpus: Corpus):
    """Return a function that trains on samples one at a time on the emulated card, and one for the slot F1 of dev."""
    trainer = open_trainer(config, "emulated", optimizer=optimizer).trainer
    trainer.load_parameters({name: p.detach().numpy() for name, p in Transformer(config, seed=seed).named_parameters()})

    def train(samples: Samples) -> None:
        trainer.train(samples, optimizer, rate)

    return train, lambda: scores_of(trainer.predict(dev), corpus, "dev", config)["slot_f1"]


def in_pytorch(config: ModelConfig, optimizer: Optimizer, rate: float, seed: int, dev: Samples, corpus: Corpus):
    """Return a function that trains on a batch in PyTorch, and one that returns the slot F1 of dev."""
    model = Transformer(config, seed=seed)
    if optimizer.name == "adamw":
        betas = (optimizer.beta1, optimizer.beta2)
        settings = {"betas": betas, "eps": optimizer.epsilon, "weight_decay": optimizer.weight_decay}
        rule = torch.optim.AdamW(model.parameters(), rate, fused=True, **settings)
    else:
        rule = torch.optim.SGD(model.parameters(), rate)

    def train(samples: Samples) -> None:
        rule.zero_grad()
        batch_losses(model, samples).mean().backward()
        rule.step()

    return train, lambda: scores_of(predict_in_batches(model, dev), corpus, "dev", config)["slot_f1"]


def batches(samples: Samples, batch: int, seed: int) -> Iterator[np.ndarray]:
    """Yield indices of samples, epoch after epoch: batches of equal length, or segments between two evaluations."""
    for epoch in range(MOST):
        order = epoch_order(len(samples), seed, epoch)
        if batch == 1:
            yield from (order[i : i + EVERY] for i in range(0, len(order), EVERY))
        else:
            random = np.random.Generator(np.random.PCG64([seed, epoch]))
            yield from equal_length_batches(order, samples.lengths, batch, random)


def samples_to_targets(way: tuple, seed: int, corpus: Corpus, most: int = MOST) -> dict[str, int | None]:
    """Train until dev reaches the last target; return the samples to each target, None if it is not reached."""
    kind, batch, name, rate = way
    config, optimizer = ModelConfig(format=kind), Optimizer(name)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
    train_split, dev = (encode(split, vocabulary, corpus, config) for split in (corpus.train, corpus.dev))
    card = kind == "tensor" and batch == 1
    train, dev_f1 = (on_card if card else in_pytorch)(config, optimizer, rate, seed, dev, corpus)
    reached: dict[str, int | None] = {str(target): None for target in TARGETS}
    done = scored = 0
    for indices in batches(train_split, batch, seed):
        segments = [indices] if card or batch > 1 else np.split(indices, len(indices))
        for segment in segments:
            train(train_split[segment])
        done += len(indices)
        if done - scored >= EVERY:
            scored, f1 = done, dev_f1()
            for target in TARGETS:
                if reached[str(target)] is None and f1 >= target:
                    reached[str(target)] = done
        if reached[str(TARGETS[-1])] is not None or done >= most:
            return reached
    return reached


def measure(entry: dict[str, Any], corpus: Corpus) -> Iterator[None]:
    """Complete an entry of the record, and yield after each run."""
    key = entry["format"], entry["batch"]
    target = str(TARGETS[-1])
    for name, rates in TRIED[key].items():
        for rate in rates:
            if any((one["optimizer"], one["learning_rate"]) == (name, rate) for one in entry["tried"]):
                continue
            best = min((one["samples"] for one in entry["tried"] if one["samples"]), default=MOST)
            samples = samples_to_targets((*key, name, rate), TUNING_SEED, corpus, best)[target]
            entry["tried"].append({"optimizer": name, "learning_rate": rate, "samples": samples, "most": best})
            yield
    best = min((one for one in entry["tried"] if one["samples"]), key=lambda one: one["samples"])
    entry |= {name: best[name] for name in ("optimizer", "learning_rate")}
    if key == ("tensor", 1):
        entry["program"] = compile(ModelConfig()).sha256
    for seed in SEEDS:
        if str(seed) not in entry["samples"]:
            way = (*key, entry["optimizer"], entry["learning_rate"])
            entry["samples"][str(seed)] = samples_to_targets(way, seed, corpus)
            yield


def receipt_of(record: dict[str, Any]) -> Receipt:
    """Return the record as a receipt; the card's way has the program it was run with."""
    target, figures, programs = str(TARGETS[-1]), {}, []
    for way in record["ways"]:
        on_the_card = (way["format"], way["batch"]) == ("tensor", 1)
        if on_the_card and (digest := way.get("program", "")) is not None:
            programs.append(ProgramUsed.of(ModelConfig(), "bidirectional", digest))
        how = (
            f"samples of ATIS until dev slot F1 is {target}, {'on the emulated card' if on_the_card else 'in PyTorch'}"
        )
        for seed, found in way["samples"].items():
            name = f"{way['format']} batch {way['batch']}.{seed}"
            value = {name: {"value": found[target], "unit": "1", "provenance": "measured", "how": how}}
            figures |= quantities_of(value, SAME if on_the_card else READING)
    return Receipt(
        title="energy to a quality",
        command=["python", "tools/energy_to_quality.py"],
        figures=figures,
        programs=programs,
        versions=versions(),
        dear="an hour; the card's way alone ten minutes: --only tensor 1 --again",
        parts={CARD_PART: ["python", "tools/energy_to_quality.py", "--only", "tensor", "1"]},
        details=record,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("record", type=Path, nargs="?", default=RECORD)
    parser.add_argument("--only", nargs=2, metavar=("FORMAT", "BATCH"), help="one format and batch size")
    parser.add_argument("--again", action="store_true", help="measure what the record has again")
    parser.add_argument("--receipt", type=Path, metavar="FILE", help=f"write the part {CARD_PART} there alone")
    options = parser.parse_args()
    if options.receipt is not None and options.only != ["tensor", "1"]:
        parser.error("--receipt is of one part: with --only tensor 1")
    torch.set_num_threads(1)
    corpus = load_corpus("atis")
    record = {
        "about": "Samples of ATIS to a dev slot F1, 2 encoders, constant rate: python tools/energy_to_quality.py",
        "provenance": "measured",
        "how": f"the optimizer and rate by seed {TUNING_SEED}; dev scored every {EVERY} samples, {MOST} at most",
        "ways": [{"format": kind, "batch": batch, "tried": [], "samples": {}} for kind, batch in TRIED],
    }
    if options.record.exists() and options.receipt is None:
        record["ways"] = details_of(options.record)["ways"]
    for entry in record["ways"]:
        if options.only in (None, [entry["format"], str(entry["batch"])]):
            if options.again:
                entry |= {"tried": [], "samples": {}}
            for _ in measure(entry, corpus):
                if options.receipt is None:
                    receipt_of(record).write(options.record, "RECORD")
                say(f"{entry['format']} {entry['batch']}: {(entry['tried'], entry['samples'])}")
    if options.receipt is not None:
        receipt_of(record).part(CARD_PART).write(options.receipt)


if __name__ == "__main__":
    sys.exit(main())
