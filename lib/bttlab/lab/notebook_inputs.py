"""Inputs of a notebook: number of samples, corpus."""

import os
from typing import TypeVar

from bttlab.data import Corpus, CorpusError, load_corpus
from bttlab.data.find import corpus_places

Budget = TypeVar("Budget")


def budget(full: Budget, quick: Budget) -> Budget:
    """Return `full`, or `quick` if BTTLAB_QUICK=1 (tests) or NBGRADER_EXECUTION (nbgrader) is set."""
    return quick if os.environ.get("BTTLAB_QUICK") == "1" or os.environ.get("NBGRADER_EXECUTION") else full


def corpus_here(*names: str) -> Corpus:
    """Read the first of these corpora that is on this machine, without a download; "airline" is built in.

    Raises CorpusError if none is here, or the first one found cannot be read.
    """
    for name in names:
        if name == "airline" or any(place.is_dir() for place in corpus_places(name)):
            return load_corpus(name)
    parents = corpus_places("")
    raise CorpusError(
        f"none of the corpora {', '.join(names)} is in {', '.join(map(str, parents))}; put one there, set BTTLAB_DATA "
        "to the folder that holds it, or use airline, which is built in"
    )
