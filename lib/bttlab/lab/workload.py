"""A corpus encoded for a model, in the order of training."""

from dataclasses import dataclass

import numpy as np

from bttlab.data import Corpus, Samples, Vocabulary, encode, epoch_order
from bttlab.model import ModelConfig, ModuleConfig


@dataclass(frozen=True)
class Workload:
    corpus: Corpus
    # A module of your own comes from `bttlab.compiler.module_file.load_module`: the run keeps a copy of its file
    config: ModelConfig | ModuleConfig
    train: Samples  # the whole training split
    dev: Samples  # the whole dev split
    seed: int = 0  # of initial parameters and order

    @classmethod
    def of(cls, corpus: Corpus, config: ModelConfig | ModuleConfig, seed: int = 0) -> "Workload":
        """Encode a corpus; errors are those of `bttlab.data.encode`."""
        vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
        train = encode(corpus.train, vocabulary, corpus, config)
        return cls(corpus, config, train, encode(corpus.dev, vocabulary, corpus, config), seed)

    def order(self, total: int) -> np.ndarray:
        """Return the indices of the first `total` samples, epoch after epoch, as `bttlab train` visits them."""
        epochs = -(-total // len(self.train))
        orders = [epoch_order(len(self.train), self.seed, epoch) for epoch in range(epochs)]
        return np.concatenate(orders)[:total]
