"""Trials that ask the model of the U50."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from bttlab.data import Corpus, Vocabulary, encode
from bttlab.model import ModelConfig, Optimizer
from bttlab.u50.estimate import Estimate, at_clock, check, estimate, with_lanes
from bttlab.u50.hardware import HardwareConfig


def question(values: Mapping[str, Any]) -> tuple[ModelConfig, HardwareConfig, dict[str, Any]]:
    """Return the model, the hardware and the whole configuration that a flat one means.

    Raises
    ------
    bttlab.errors.BttlabError
        If a value is outside its range, or the accelerator's source cannot be built for it.
    """
    values = dict(values)
    optimizer, data = Optimizer(values.pop("optimizer", "sgd")).name, values.pop("data", "airline")
    hardware = HardwareConfig()
    if "clock_mhz" in values:
        hardware = at_clock(hardware, values.pop("clock_mhz"))
    if "lanes" in values:
        hardware = with_lanes(hardware, values.pop("lanes"))
    model = ModelConfig(**values)
    check(model, hardware)
    whole = {"optimizer": optimizer, "lanes": hardware.multiply_accumulates, "clock_mhz": hardware.clock_mhz}
    return model, hardware, model.to_dict() | whole | {"data": data}


def answer(configuration: Mapping[str, Any], corpus: Corpus) -> Estimate:
    """Return the estimate of a trial; an epoch is the corpus's training split."""
    model, hardware, _ = question(configuration)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, model.vocabulary_size)
    lengths = Counter(encode(corpus.train, vocabulary, corpus, model).lengths.tolist())
    return estimate(model, hardware, lengths, configuration["optimizer"])
