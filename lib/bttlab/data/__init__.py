"""Find, read and encode corpora. Scores are in :mod:`bttlab.data.metrics`."""

from .augmentation import Augmentation, AugmentationError, Augmenter
from .corpus import Corpus, CorpusError, Split, read_corpus
from .find import find_corpus, load_corpus
from .samples import EncodingReport, SampleError, Samples, encode, encoding_report, epoch_order
from .vocabulary import Vocabulary

__all__ = [
    "Augmentation",
    "AugmentationError",
    "Augmenter",
    "Corpus",
    "CorpusError",
    "EncodingReport",
    "SampleError",
    "Samples",
    "Split",
    "Vocabulary",
    "encode",
    "encoding_report",
    "epoch_order",
    "find_corpus",
    "load_corpus",
    "read_corpus",
]
