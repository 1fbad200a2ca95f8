"""Trials of kind "estimate"."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from bttlab.data import Corpus, Vocabulary, encode
from bttlab.estimate.card import CLOCK_MHZ, Estimate, estimate
from bttlab.model import PAPER_FLOW, ModelConfig, Optimizer


def question(values: Mapping[str, Any]) -> tuple[ModelConfig, dict[str, Any]]:
    """Return the model, and the configuration completed with defaults.

    Raises
    ------
    bttlab.errors.BttlabError
        If a value is outside its range, or the machine does not hold the model.
    """
    values = dict(values)
    whole = {
        "optimizer": Optimizer(values.pop("optimizer", "sgd")).name,
        "flow": values.pop("flow", PAPER_FLOW),
        "clock_mhz": values.pop("clock_mhz", CLOCK_MHZ),
        "data": values.pop("data", "airline"),
    }
    model = ModelConfig(**values)
    estimate(model, flow=whole["flow"], clock_mhz=whole["clock_mhz"])  # is refused if it cannot be
    return model, model.to_dict() | whole


def answer(configuration: Mapping[str, Any], corpus: Corpus) -> Estimate:
    """Return the estimate of a trial; an epoch is the corpus's training split."""
    model, whole = question(configuration)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, model.vocabulary_size)
    lengths = Counter(encode(corpus.train, vocabulary, corpus, model).lengths.tolist())
    return estimate(model, lengths, whole["optimizer"], whole["flow"], whole["clock_mhz"])
