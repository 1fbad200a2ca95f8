"""The setting that all methods of a comparison share: model, samples, budget."""

import math
from dataclasses import dataclass, replace
from typing import Any

from bttlab.data import Corpus
from bttlab.model import ModelConfig
from bttlab.util.errors import BttlabError

BATCH = 8  # utterances
MOST_SAMPLES = 10**8
SCORED_AT_ONCE = 64  # utterances


class MethodError(BttlabError):
    """A method that cannot be used as asked for."""


@dataclass(frozen=True)
class Setting:
    """A comparison's common ground; a method may change what its `change_setting` returns."""

    corpus: Corpus
    config: ModelConfig  # of the dense model, unless a method changes it
    samples: int  # the budget: samples to train on, epoch after epoch
    batch: int = BATCH  # utterances of a step, at most
    seed: int = 0  # of initial parameters, order, and whatever a method draws
    device: str = "cpu"
    rate_factor: float = 1.0  # of every learning rate: 1 for the dense model with batches of `BATCH`
    warmup: float = 0.1  # part of the budget in which the learning rate rises; it then falls to 0 in a straight line

    def __post_init__(self) -> None:
        for name, way_out in (("samples", "--budget 500, or --budget 1epoch"), ("batch", "--batch 8")):
            value = getattr(self, name)
            if value < 1:
                raise MethodError(f"{name} is {value}: it must be at least 1; pass {way_out}")
            if value > MOST_SAMPLES:
                raise MethodError(f"{name} is {value:,}: it must be at most {MOST_SAMPLES:,}; pass {way_out}")
        if self.seed < 0:
            raise MethodError(f"seed is {self.seed}: it must be at least 0; pass --seed 0")

    @property
    def own_sizes(self) -> dict[str, Any]:
        """Fields of the model's configuration in which it is not the paper's of the same depth."""
        usual = ModelConfig(encoders=self.config.encoders, format=self.config.format).to_dict()
        return {name: value for name, value in self.config.to_dict().items() if value != usual.get(name)}

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
    text = str(budget).strip().lower()
    number = text.removesuffix("s").removesuffix("epoch")
    epochs = number != text and number != text.removesuffix("s")
    try:
        value = float(number) if epochs else int(text)
    except ValueError:
        value = math.nan
    samples = value * epoch if epochs else value
    if not (math.isfinite(samples) and samples >= 1):
        raise MethodError(
            f"budget is {budget!r}: it must be at least one sample; give a number of samples, as 2000, or of epochs, "
            "as 1epoch or 0.5epoch"
        )
    return round(samples)
