"""The built-in airline corpus: a grammar of our own in ATIS's label scheme."""

from .generate import SEED, SPLITS, corpus_files, utterances
from .labels import INTENT_LABELS, SLOT_LABELS

__all__ = ["INTENT_LABELS", "SEED", "SLOT_LABELS", "SPLITS", "corpus_files", "utterances"]
