"""Find, read and encode corpora. Scores are in :mod:`bttlab.data.metrics`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "augmentation": ("Augmentation", "AugmentationError", "Augmenter"),
        "corpus": ("Corpus", "CorpusError", "Split", "read_corpus"),
        "find": ("find_corpus", "load_corpus"),
        "samples": ("EncodingReport", "SampleError", "Samples", "encode", "encoding_report", "epoch_order"),
        "vocabulary": ("Vocabulary",),
    },
)
