"""Records of the training processor: samples with the scalars of their updates, results, constants of an optimizer."""

from typing import Any

import numpy as np

from bttlab.compiler.machine import M
from bttlab.compiler.program import ModelProgram, Program
from bttlab.model.choices import IGNORED, OPTIMIZERS
from bttlab.model.config import Optimizer
from bttlab.model.loop import ends_sum
from bttlab.model.trainer import UpdateFactors

ENDS_SUM = 10  # of a record's scalars, as in hls_src/processor/samples.h: FLUSH follows the sample


def sample_dtype(rows: int = 0) -> np.dtype:
    """Return the type of a sample's record; `rows`: vectors of its tokens' rows, if their table is not on chip."""
    return np.dtype(
        [
            ("tokens", "<i4"),
            ("intent", "<i4"),
            ("scalars", "<f4", M.SCALARS),
            ("token_offsets", "<i4", (M.OFFSET_TABLES, M.SEQUENCE)),
            ("slots", "<i4", M.SEQUENCE),
            *([("rows", "<f4", (rows, M.LANES))] if rows else ()),
        ]
    )


def result_dtype() -> np.dtype:
    return np.dtype(
        [
            ("status", "<i4"),
            ("intent", "<i4"),
            ("loss", "<f4"),
            ("intent_loss", "<f4"),
            ("slot_loss", "<f4"),
            ("cycles", "<i4"),
            ("flush_cycles", "<i4"),
            ("unused", "<i4", M.LANES - 7),
            ("slots", "<i4", M.SEQUENCE),
        ]
    )


def record_dtype(program: Program) -> np.dtype:
    """Return the type of the records of a program's samples."""
    return sample_dtype(program.limits.sequence_length * program.token_vectors)


def sample_records(
    program: ModelProgram,
    samples: Any,
    rates: np.ndarray,
    optimizer: Optimizer,
    smoothing: float = 0.0,
    step: int = 0,
    table: np.ndarray | None = None,
) -> np.ndarray:
    """Return the kernel's records of samples, `step` samples after the first; `rates` are of shape (n,).

    `table`: float32 of shape (rows, features): the rows of tokens come from it, if it is not on chip.
    """
    config = program.config
    records = np.zeros(len(samples), record_dtype(program))
    lengths = np.asarray(samples.lengths)
    records["tokens"], records["intent"] = lengths, samples.intents
    width = samples.tokens.shape[1]
    offsets = program.token_table.token_offsets(samples.tokens.reshape(-1))
    records["token_offsets"][:, :, :width] = offsets.reshape(len(offsets), len(samples), width).transpose(1, 0, 2)
    records["slots"][:, :width] = np.where(samples.slots == IGNORED, config.slots, samples.slots)
    if program.token_vectors:
        rows = np.asarray(table)[
            samples.tokens % config.vocabulary_size
        ]  # token ids of two sentences are type * words + word
        records["rows"].reshape(len(samples), -1)[:, : rows[0].size] = rows.reshape(len(samples), -1)
    scalars = records["scalars"]
    set_rates(scalars, rates, optimizer, step)
    if program.sums:
        scalars[:, ENDS_SUM] = ends_sum(step + np.arange(len(samples)), optimizer)
    share = 1 / labelled_words(config, samples)
    scalars[:, 4] = 1 - smoothing
    scalars[:, 5] = smoothing / config.intents
    scalars[:, 6] = share
    scalars[:, 7] = (1 - smoothing) * share
    scalars[:, 8] = smoothing / config.slots * share
    return records


def labelled_words(config: Any, samples: Any) -> np.ndarray:
    """Return over how many words the slot loss of each sample is the mean, at least 1: float64 of shape (n,)."""
    words = np.asarray(samples.lengths) - 1
    if config.ignore_index is not None:
        is_word = np.arange(1, samples.slots.shape[1]) < np.asarray(samples.lengths)[:, None]
        words = np.count_nonzero(is_word & (samples.slots[:, 1:] != config.ignore_index), axis=1)
    return np.maximum(words, 1).astype(float)


def correct_losses(config: Any, samples: Any, results: np.ndarray) -> None:
    """Change the losses of results to means over the labelled words: the card's are over all words of a sample."""
    if config.ignore_index is not None:
        words = np.maximum(np.asarray(samples.lengths) - 1, 1)
        results["slot_loss"] *= (words / labelled_words(config, samples)).astype(np.float32)
        results["loss"] = results["intent_loss"] + results["slot_loss"]


def set_rates(scalars: np.ndarray, rates: float | np.ndarray, optimizer: Optimizer, step: int = 0) -> None:
    """Write the scalars that the update needs into those of sample records, float32 of shape (n, scalars)."""
    factors = UpdateFactors.of(optimizer, np.broadcast_to(np.asarray(rates, np.float32), len(scalars)), step)
    scalars[:, 0] = factors.rate
    scalars[:, 9] = factors.same_update
    if optimizer.name == "adamw":
        scalars[:, 1] = factors.step
        scalars[:, 2] = factors.root
        scalars[:, 3] = factors.keep


def optimizer_arguments(optimizer: Optimizer) -> tuple[int, float, float, float]:
    return list(OPTIMIZERS).index(optimizer.rule), optimizer.decay, optimizer.beta2, optimizer.epsilon
