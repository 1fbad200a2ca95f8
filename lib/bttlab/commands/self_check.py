"""The doctor's self-check: some hundred samples on the overlay, ten seconds at most, in which the loss must fall."""

import time
from collections.abc import Iterator

import numpy as np

from bttlab.commands import OK, PROBLEM, Check
from bttlab.util.quantities import measured

SAMPLES, SECONDS = 500, 10.0


def self_check() -> Iterator[Check]:
    """Train 2-ENC on the airline corpus and compare the first losses with the last."""
    from bttlab.data import Vocabulary, encode, epoch_order, load_corpus
    from bttlab.model import LEARNING_RATES, ModelConfig, Optimizer, initial_parameters
    from bttlab.model.loop import chunks, train_pieces
    from bttlab.runs.devices import open_trainer

    config, corpus = ModelConfig(encoders=2), load_corpus("airline")
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
    order = epoch_order(len(corpus.train), 0, 0)[:SAMPLES]
    samples = encode(corpus.train, vocabulary, corpus, config)[order]
    opened = open_trainer(config, "auto")
    opened.trainer.load_parameters(initial_parameters(config, 0))
    parts: list[np.ndarray] = []
    begin = time.perf_counter()
    train_pieces(
        chunks(0, len(samples)),
        lambda part: opened.trainer.train(samples[part], Optimizer("sgd"), LEARNING_RATES["sgd"]),
        lambda part, losses, seconds: parts.append(losses),
        lambda: time.perf_counter() - begin <= SECONDS,
    )
    losses, seconds = np.concatenate(parts), time.perf_counter() - begin
    quarter = max(1, len(losses) // 4)
    first, last = float(losses[:quarter].mean()), float(losses[-quarter:].mean())
    detail = (
        f"{len(losses)} samples on {opened.announcement} in {seconds:.1f} s (measured): loss {first:.2f} to {last:.2f}"
    )
    data = {
        "device": opened.device,
        "samples": len(losses),
        "first_loss": first,
        "last_loss": last,
        "seconds": measured(seconds, "s", f"time.perf_counter on this host, around training on {opened.device}"),
    }
    if last < first:
        yield Check("self-check", OK, detail, data=data)
    else:
        yield Check("self-check", PROBLEM, f"{detail}; it should fall", "rebuild the overlays: make overlays", data)
