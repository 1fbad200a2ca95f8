"""Inputs of a notebook: number of samples, corpus, and the corpus encoded for a model in the order of training."""

import os
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from bttlab.data import Corpus, CorpusError, Samples, Vocabulary, encode, epoch_order, load_corpus
from bttlab.data.find import corpus_places
from bttlab.model import ModelConfig, ModuleConfig

Budget = TypeVar("Budget")


@dataclass(frozen=True)
class Workload:
    """A corpus and a model that trains on it, as the notebooks use them.

    Attributes
    ----------
    corpus : Corpus
        What is trained on.
    config : ModelConfig or ModuleConfig
        The model.
    train, dev : Samples
        The whole splits.
    seed : int
        Of the order, and of initial parameters, but for a module that does not come from a file: its initial parameters
        are those that it has.
    """

    corpus: Corpus
    config: ModelConfig | ModuleConfig
    train: Samples
    dev: Samples
    seed: int = 0

    @classmethod
    def of(cls, corpus: Corpus, config: ModelConfig | ModuleConfig, seed: int | None = None) -> "Workload":
        """Encode a corpus for a model.

        Parameters
        ----------
        corpus : Corpus
            What is trained on.
        config : ModelConfig or ModuleModel
            The model.
        seed : int, optional
            By default the one that a module was loaded with, else 0.

        Returns
        -------
        Workload
            The whole splits. A module of a file is loaded again, if it was loaded with another seed.

        Raises
        ------
        CorpusError
            As `bttlab.data.encode`.
        BttlabError
            As `bttlab.compiler.module_file.module_of_source`.
        """
        seed = getattr(config, "seed", 0) if seed is None else seed
        config = _seeded(config, seed)
        vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
        train = encode(corpus.train, vocabulary, corpus, config)
        return cls(corpus, config, train, encode(corpus.dev, vocabulary, corpus, config), seed)

    def with_seed(self, seed: int) -> "Workload":
        """Return the workload with another seed; a module of a file is loaded again, with errors as of `of`."""
        return replace(self, config=_seeded(self.config, seed), seed=seed)

    def order(self, total: int) -> np.ndarray:
        """Return the indices of the first `total` samples, epoch after epoch, as `bttlab train` visits them."""
        epochs = -(-total // len(self.train))
        orders = [epoch_order(len(self.train), self.seed, epoch) for epoch in range(epochs)]
        return np.concatenate(orders)[:total]


def _seeded(config: ModelConfig | ModuleConfig, seed: int) -> ModelConfig | ModuleConfig:
    if not getattr(config, "source", b""):  # it is no `ModuleModel` of a file
        return config
    from bttlab.compiler.module_file import with_seed

    return with_seed(config, seed)


def budget(full: Budget, quick: Budget) -> Budget:
    """Return one of two values, as notebooks choose between full and few samples.

    Parameters
    ----------
    full : object
        For a reader.
    quick : object
        If BTTLAB_QUICK=1 (tests) or NBGRADER_EXECUTION (nbgrader) is set.

    Returns
    -------
    object
        One of them.
    """
    return quick if os.environ.get("BTTLAB_QUICK") == "1" or os.environ.get("NBGRADER_EXECUTION") else full


def corpus_here(*names: str) -> Corpus:
    """Read the first of some corpora that is on this machine, without a download.

    Parameters
    ----------
    *names : str
        Of the corpora; "airline" is built in.

    Returns
    -------
    Corpus
        The corpus.

    Raises
    ------
    CorpusError
        If none is here, or the first one found cannot be read.
    """
    for name in names:
        if name == "airline" or any(place.is_dir() for place in corpus_places(name)):
            return load_corpus(name)
    parents = corpus_places("")
    raise CorpusError(
        f"none of the corpora {', '.join(names)} is in {', '.join(map(str, parents))}; put one there, set BTTLAB_DATA "
        "to the folder that holds it, or use airline, which is built in"
    )
