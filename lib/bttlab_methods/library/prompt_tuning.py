"""Prompt tuning: learned vectors that every utterance is read together with."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bttlab_methods.pretrained import FromPretrained
from bttlab_methods.training import Training


@dataclass(frozen=True)
class PromptTuning(FromPretrained):
    """Freeze a model trained first, and train vectors that stand before the embedded tokens, and the heads.

    The encoders see them as they see tokens; what comes out at their places is dropped. They start as embeddings of
    words at random.

    Parameters
    ----------
    length : int
        Vectors.
    pretraining : int
        Samples that the model is trained on first.
    rate_factor : float
        Of the learning rate.
    """

    name = "prompt-tuning"
    source = "Lester et al., arXiv 2104.08691, section 2"
    ranges = (*FromPretrained.ranges, "length in [1, inf)")
    changes = FromPretrained.changes | {"tokens"}

    length: int = 8
    rate_factor: float = 10.0

    def choose_trained(self, training: Training) -> None:
        """Put the vectors in behind the embedding, and take them out behind the last encoder."""
        model = training.model
        model.requires_grad_(False)
        words = torch.from_numpy(training.random.integers(0, model.config.vocabulary_size, self.length))
        with torch.no_grad():
            model.prompt = nn.Parameter(model.embedding.norm(model.embedding.word(words.to(training.device))))
        model.embedding.register_forward_hook(partial(_prepend, prompt=model.prompt))
        model.encoders[-1].register_forward_hook(partial(_drop, length=self.length))


def _prepend(module: nn.Module, inputs: tuple, x: Tensor, prompt: Tensor) -> Tensor:
    return torch.cat([prompt.expand(*x.shape[:-2], *prompt.shape), x], -2)


def _drop(module: nn.Module, inputs: tuple, x: Tensor, length: int) -> Tensor:
    return x[..., length:, :]
