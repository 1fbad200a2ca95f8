"""The setting that all methods of a comparison share: model, samples, budget."""

import re
from dataclasses import replace
from typing import Any

from pydantic import Field, InstanceOf

from bttlab.data import Corpus
from bttlab.model import ModelConfig
from bttlab.runs.settings import corpus_digest
from bttlab.util.errors import BttlabError
from bttlab.util.settings import Count, settings

BATCH = 8  # utterances
MOST_SAMPLES = 10**8
SCORED_AT_ONCE = 64  # utterances


class MethodError(BttlabError):
    """A method that cannot be used as asked for."""


@settings(MethodError)
class Setting:
    """A comparison's common ground; a method may change what its `change_setting` returns.

    Raises MethodError if a value breaks a rule.
    """

    corpus: InstanceOf[Corpus]
    config: InstanceOf[ModelConfig]  # of the dense model, unless a method changes it
    samples: Count = Field(ge=1, le=MOST_SAMPLES)  # the budget: samples to train on, epoch after epoch
    batch: Count = Field(default=BATCH, ge=1, le=MOST_SAMPLES)  # utterances of a step, at most
    seed: Count = Field(default=0, ge=0)  # of initial parameters, order, and whatever a method draws
    device: str = "cpu"
    rate_factor: float = 1.0  # of every learning rate: 1 for the dense model with batches of `BATCH`
    warmup: float = 0.1  # part of the budget in which the learning rate rises; it then falls to 0 in a straight line

    @property
    def own_sizes(self) -> dict[str, Any]:
        """Fields of the model's configuration in which it is not the paper's of the same depth."""
        usual = ModelConfig(encoders=self.config.encoders, format=self.config.format).to_dict()
        return {name: value for name, value in self.config.to_dict().items() if value != usual.get(name)}

    @property
    def corpus_sha256(self) -> str:
        """SHA-256 of the corpus: its label lists, splits and tokenizer."""
        return corpus_digest(self.corpus)

    def scaled(self, rate_factor: float) -> "Setting":
        return replace(self, rate_factor=self.rate_factor * rate_factor)

    def rate(self, progress: float) -> float:
        """Return the factor of the learning rate when a part of the budget, 0 to 1, is used."""
        rise = min(1.0, progress / self.warmup) if self.warmup else 1.0
        return self.rate_factor * min(rise, (1 - progress) / (1 - self.warmup))


def samples_of(budget: str | int, epoch: int) -> int:
    """Return the samples of a budget: a number of samples, or epochs of `epoch` samples as "2epochs" or "0.5epoch".

    Raises MethodError if it is neither, or less than one sample.
    """
    match = re.fullmatch(r"(\d*\.?\d+)(epochs?)?", str(budget).strip().lower())
    samples = float(match[1]) * (epoch if match[2] else 1) if match else 0
    if samples < 1:
        raise MethodError(
            f"budget is {budget!r}: it must be at least one sample; give a number of samples, as 2000, or of epochs, "
            "as 1epoch or 0.5epoch"
        )
    return round(samples)
