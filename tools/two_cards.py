"""Compare training on two emulated cards with one: parameters after 200 updates, and the modelled time of an update.

python tools/two_cards.py --again writes data/two_cards.json and the tables of docs/accelerator.md; without an argument
the tables alone.
"""

import argparse
import json
import time

import numpy as np
from pages import filled

from bttlab.card import EmulatedU50, ParallelTrainer, open_trainer
from bttlab.card.parallel import combined
from bttlab.compiler.program import Options, compile
from bttlab.data import Vocabulary, encode, epoch_lengths, epoch_order, load_corpus
from bttlab.estimate.constants import MODEL_VERSION
from bttlab.estimate.parallel import shared_update
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.model.trainer import UpdateFactors
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.places import ROOT

RECORD, PAGE = ROOT / "data" / "two_cards.json", "docs/accelerator.md"
MODEL, UPDATES = ModelConfig(encoders=2), 200
RATES = {"sgd": 4e-3, "adamw": 1e-3}
TRAINED = (("adamw", 2), ("sgd", 2), ("sgd", 8), ("adamw", 8))
SIZES = (32, 64, 128, 256, 512)
GAIN = 1.8  # throughput of two cards over that of one: the least update that reaches it is in the record
LEAST = 1e-9  # that a tensor moved
TIMES = 20  # the host's work is measured as often, and the median counts


def after_training(cards: list[EmulatedU50], optimizer: Optimizer, samples, parallel: bool):
    """Return the parameters, and the mean loss of the last quarter of the samples."""
    drivers = [open_trainer(MODEL, card, optimizer=optimizer) for card in cards]
    trainer = ParallelTrainer(drivers) if parallel else drivers[0]
    trainer.load_parameters(initial_parameters(MODEL, 0))
    losses = trainer.train(samples, optimizer, RATES[optimizer.name])
    return trainer.store_parameters(), float(np.mean(losses[-len(losses) // 4 :], dtype=np.float64))


def differences() -> list[dict]:
    """Train on two cards and on one, and compare parameters: bits, and the distance beside the way from the start."""
    corpus, cards = load_corpus("airline"), [EmulatedU50(), EmulatedU50()]
    vocabulary = Vocabulary.from_sentences(corpus.train.words, MODEL.vocabulary_size)
    order, begin, rows = epoch_order(len(corpus.train), 0, 0), initial_parameters(MODEL, 0), []
    for name, size in TRAINED:
        samples = encode(corpus.train, vocabulary, corpus, MODEL)[order[: UPDATES * size]]
        optimizer = Optimizer(name, batch_size=size)
        ends = [after_training(cards[: 1 + shared], optimizer, samples, shared) for shared in (True, False)]
        (two, one), losses = zip(*ends, strict=True)
        ways = {key: float(np.linalg.norm(two[key] - begin[key])) for key in two}
        far = [float(np.linalg.norm(two[key] - one[key])) / way for key, way in ways.items() if way > LEAST]
        rows.append(
            {
                "optimizer": name,
                "batch_size": size,
                "updates": UPDATES,
                "equal_bits": all(two[k].tobytes() == one[k].tobytes() for k in two),
                "median": float(np.median(far)),
                "worst": max(far),
                "losses": losses,
            }
        )
    return rows


def host_seconds(optimizer: Optimizer) -> float:
    """Measure the processor's time for an update: copies between buffers, sums of two cards' moments, the update."""
    program = compile(MODEL, Options(optimizer=optimizer))
    state = np.ones((3, program.layout.vectors, 16), np.float32)
    trained, factors = np.ones(state.shape[1:], bool), UpdateFactors.of(optimizer, np.array([0.1]), 0)[0]
    buffer, taken = np.zeros_like(state), []  # the other card's buffers are copied at the same time
    for _ in range(TIMES):
        begin = time.thread_time()
        sums = [np.stack(list(buffer[1 : 1 + len(optimizer.moments)])) for _ in range(2)]
        buffer[:] = combined(state, sums, optimizer, factors, trained)
        taken.append(time.thread_time() - begin)
    return float(np.median(taken))


def throughputs() -> list[dict]:
    lengths, rows = epoch_lengths(load_corpus("airline"), MODEL.sequence_length), []
    for name in RATES:
        host = host_seconds(Optimizer(name, batch_size=32))
        for size in SIZES:
            optimizer = Optimizer(name, batch_size=size)
            program = compile(MODEL, Options(optimizer=optimizer))
            one, two = (shared_update(program, lengths, size, cards, host) for cards in (1, 2))
            values = {part: getattr(two, part).value for part in ("training", "exchange", "transfers", "host")}
            ratio = [one.seconds.value / seconds for seconds in (two.seconds.high, two.seconds.value, two.seconds.low)]
            rows.append(
                {"optimizer": name, "batch_size": size, "one": one.seconds.value, "two": two.seconds.value}
                | {"parts": values, "ratio": dict(zip(("low", "value", "high"), ratio, strict=True))}
                | {"program": program.sha256}
            )
    return rows


def least_batch(name: str, host: float) -> int:
    """Return the smallest even number of samples of an update with which two cards train GAIN times as fast as one."""
    lengths = epoch_lengths(load_corpus("airline"), MODEL.sequence_length)
    for size in range(2, 4096, 2):
        program = compile(MODEL, Options(optimizer=Optimizer(name, batch_size=size)))
        one, two = (shared_update(program, lengths, size, cards, host).seconds.value for cards in (1, 2))
        if one >= GAIN * two:
            return size
    raise BttlabError(f"two cards train {GAIN} times as fast with no update of {name}")


def tables(record: dict) -> dict[str, str]:
    equal, update = {True: "equal", False: "differ"}, "optimizer, samples of an update"
    bits, times = [], []
    for row in record["parameters"]:
        distances = (f"{row[key]:.1e}" for key in ("median", "worst"))
        losses = (f"{loss:.4f}" for loss in row["losses"])
        bits.append([f"{row['optimizer']}, {row['batch_size']}", equal[row["equal_bits"]], *distances, *losses])
    for row in record["times"]:
        ratio = row["ratio"]
        shown = (f"{1e3 * row[key]:.1f}" for key in ("one", "two"))
        band = f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        beside = sum(value for part, value in row["parts"].items() if part != "training")
        times.append([f"{row['optimizer']}, {row['batch_size']}", *shown, f"{1e3 * beside:.1f}", band])
    sizes = " and ".join(f"{size} samples an update with {name}" for name, size in record["least_batch"].items())
    found = ["bits", "distance / way, median tensor", "worst tensor", "loss on two cards", "on one"]
    return {
        "two-cards": _markdown([update, *found], bits),
        "two-cards-reach": f"The throughput of two cards is {GAIN} times that of one from {sizes} (modelled).\n",
        "two-cards-time": _markdown([update, "one card, ms", "two cards, ms", "exchange, ms", "throughput"], times),
    }


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(root=ROOT) -> None:
    """Write the tables into the page of a folder."""
    page = root / PAGE
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    write_file(page, filled(page.read_text(encoding="utf-8"), tables(record), PAGE))


def is_stale() -> bool:
    """Return True if the compiler makes other programs than those of the record."""
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["times"]
    options = (Options(optimizer=Optimizer(row["optimizer"], batch_size=row["batch_size"])) for row in rows)
    return any(row["program"] != compile(MODEL, each).sha256 for row, each in zip(rows, options, strict=True))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="train and model again")
    if parser.parse_args(arguments).again:
        times = throughputs()
        record = {
            "about": "Made by: python tools/two_cards.py --again. Parameters: emulated cards, 2 encoders, built-in "
            "corpus. Times: modelled, but for the host's part, which was measured on one host",
            "model": MODEL_VERSION,
            "parameters": differences(),
            "times": times,
            "least_batch": {row["optimizer"]: least_batch(row["optimizer"], row["parts"]["host"]) for row in times},
        }
        write_file(RECORD, json.dumps(record, indent=1) + "\n")
    write()


if __name__ == "__main__":
    main()
