"""A baseline small enough to run in a test many times."""

from bttlab.baseline import BaselineSetting, Listener, Record, run_baseline
from bttlab.baseline.run import FORMATS
from bttlab.baseline.step import Task
from bttlab.data import Samples, Vocabulary, encode, epoch_order, load_corpus
from bttlab.model import ModelConfig

TINY = ModelConfig(
    encoders=1,
    sequence_length=16,
    hidden_size=12,
    heads=2,
    vocabulary_size=20,
    linear_out_modes=(3, 4),
    linear_in_modes=(4, 3),
    linear_rank=2,
    embedding_row_modes=(4, 5),
    embedding_column_modes=(3, 4),
    embedding_rank=2,
)
LEARNING_RATE = 1e-2
SETTING = {"config": TINY, "warmup": 3, "learning_rate": LEARNING_RATE, "modes": ["eager"]}


def tiny_baseline(format: str, device: str, listener: Listener | None = None, **setting) -> Record:
    """A baseline of the tiny model."""
    return run_baseline(BaselineSetting(format, device, **SETTING | setting), listener)


def samples(count: int, config: ModelConfig = TINY, seed: int = 0) -> Samples:
    """The first samples of the airline corpus in training order."""
    corpus = load_corpus("airline")
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size)
    return encode(corpus.train, vocabulary, corpus, config)[epoch_order(len(corpus.train), seed, 0)[:count]]


def tiny_task(format: str, count: int = 12, device: str = "cpu") -> Task:
    """A task of the tiny model."""
    kind, flow = FORMATS[format]
    config = ModelConfig(**TINY.to_dict() | {"format": kind})
    return Task(config, flow or "bidirectional", samples(count), LEARNING_RATE, 0, device)
