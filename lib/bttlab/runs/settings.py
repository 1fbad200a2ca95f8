"""Settings of a run, and its record of the corpus."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, InstanceOf, WithJsonSchema

from bttlab.data import Augmentation, Corpus, CorpusError, Split, Vocabulary
from bttlab.data.corpus import OUTSIDE, PAD, SPLIT_NAMES, UNK
from bttlab.data.tokenizer import SPACES, Tokenizer
from bttlab.data.vocabulary import SPECIAL
from bttlab.model import PAPER_FLOW, ModelConfig, ModuleConfig, Optimizer, config_of
from bttlab.util.errors import BttlabError
from bttlab.util.settings import RecordError, from_values, settings

MODEL_KEYS = [setting.name for setting in fields(ModelConfig)]
MOST_CARDS = 16
LARGEST_RATE = 3.4e38  # that FP32 holds
Model = Annotated[
    InstanceOf[ModelConfig] | InstanceOf[ModuleConfig],
    BeforeValidator(lambda value: config_of(value) if isinstance(value, Mapping) else value),
    WithJsonSchema({"type": "object"}),
]


class RunError(BttlabError, ValueError):
    """Raised if a run cannot be started or continued."""


@settings(RunError)
class LearningRateSchedule:
    """Learning rate over a run: linear warm-up from 0, then constant or linear decay to 0.

    Parameters
    ----------
    decay : {"none", "linear"}
        "linear" decays to 0 at the end of the run.
    warm_up : float
        Fraction of the run for warm-up, in [0, 1).

    Raises
    ------
    RunError
        If a value breaks a rule.
    """

    decay: Literal["none", "linear"] = "none"
    warm_up: float = Field(default=0.0, ge=0, lt=1)

    @property
    def depends_on_epochs(self) -> bool:
        """Whether rates depend on the number of epochs of the run."""
        return self.decay != "none" or self.warm_up > 0

    def rates(self, peak: float, steps: int | np.ndarray, total: int) -> np.ndarray:
        """Return the learning rates of steps, numbers from 0 below `total`; `peak` is the highest."""
        done = np.asarray(steps, np.float64) / total
        rates = np.ones_like(done) if self.decay == "none" else (1.0 - done) / (1.0 - self.warm_up)
        rise = done / self.warm_up if self.warm_up else np.inf
        return peak * np.minimum(np.minimum(rates, 1.0), rise)


@settings(RunError, kw_only=True)
class Recipe:
    """Settings of a training that a file of its own may give.

    Parameters
    ----------
    epochs : int
        Passes over the samples.
    learning_rate : float
        The peak, if a schedule varies it.
    optimizer : Optimizer
        Update rule, and samples of an update.
    schedule : LearningRateSchedule
        By default constant.
    augmentation : Augmentation
        By default none.
    word_classes : bool
        Whether unknown words get a class by their characters (`bttlab.data.Vocabulary`).
    label_smoothing : float
        As for `bttlab.model.loss`.
    decode_tags : bool
        Whether an utterance's tags are decoded together (`bttlab.data.tags.TagDecoder`) before they are scored.

    Raises
    ------
    RunError
        If a value breaks a rule.
    ConfigError
        If a value of the optimizer breaks a rule.
    """

    epochs: int = Field(ge=1, le=10**6)
    learning_rate: float = Field(ge=0, le=LARGEST_RATE)
    optimizer: Optimizer
    schedule: LearningRateSchedule = LearningRateSchedule()
    augmentation: Augmentation = Augmentation()
    word_classes: bool = False
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    decode_tags: bool = False


@settings(RunError, kw_only=True)
class RunSettings(Recipe):
    """Settings of a run, beside those of a `Recipe`: equal settings, corpus and device give equal bits.

    Attributes
    ----------
    config : ModelConfig or ModuleConfig
        The model.
    data : str
        Name or absolute path of the corpus.
    device : str
        As on the command line: "auto", "emulated", "reference" or an index.
    recipe : str or None
        Name or path of the recipe of these settings.
    seed : int
        Of the initial parameters, the order of samples and their augmentation.
    epochs : int
        Passes over the samples, by default 1.
    samples : int or None
        Samples of an epoch: the first ones of the epoch's order over the whole training split, so that epochs see
        different ones. By default all.
    unknown_labels : {"error", "unk"}
        As for `bttlab.data.load_corpus`.
    flow : {"bidirectional", "right_to_left", "auto"}
        Order of contraction in the linear layers: the paper's, the one that contracts token by token, or the fastest
        for the lengths of the corpus (modelled).
    overlay : str or None
        Of the card: the name of one in the manifest, or the absolute path of an .xclbin. By default trainer.
    cards : int
        Cards that share the samples of an update, 1 or more; the order of sums, and so the bits, follow from it.
    keep : {"last", "best"}
        "best" keeps the checkpoint of the epoch with the best dev scores, too.

    Raises
    ------
    RunError
        If a value breaks a rule.
    """

    config: Model
    data: str
    device: str
    recipe: str | None = None
    seed: int = Field(default=0, ge=0, lt=2**63)
    epochs: int = Field(default=1, ge=1, le=10**6)
    samples: int | None = Field(default=None, ge=1)
    unknown_labels: Literal["error", "unk"] = "error"
    flow: Literal["bidirectional", "right_to_left", "auto"] = PAPER_FLOW
    overlay: str | None = None
    cards: int = Field(default=1, ge=1, le=MOST_CARDS)
    keep: Literal["last", "best"] = "last"

    def __post_init__(self) -> None:
        if self.cards > 1 and self.optimizer.batch_size == 1:
            raise RunError(
                f"cards is {self.cards}: they share the samples of an update, which has one; choose a batch_size of "
                f"{self.cards} or more"
            )
        if self.cards > 1 and self.device not in ("auto", "emulated"):
            raise RunError(f"cards is {self.cards}, and device {self.device!r} is one: choose auto or emulated")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"config": self.config.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunSettings":
        """Build settings from `to_dict`'s result, or that of an older version."""
        values = dict(values)
        values.pop("repair_tags", None)  # of version 0.1, whose rule decoding replaces
        known = {field.name for field in fields(Augmentation)}
        augmentation = {key: value for key, value in values.get("augmentation", {}).items() if key in known or value}
        return from_values(cls, values | {"augmentation": augmentation})


def fitted_to(corpus: Corpus, run: RunSettings, grows: bool = True) -> RunSettings:
    """Return settings whose model fits a corpus as of `model_for`; a module stays as it is."""
    if isinstance(run.config, ModuleConfig):
        return run
    config = model_for(corpus, run.config, grows, run.word_classes)
    return run if config == run.config else replace(run, config=config)


def model_for(corpus: Corpus, config: ModelConfig, grows: bool = True, word_classes: bool = False) -> ModelConfig:
    """Return a model that fits a corpus, as `bttlab train` trains it.

    Parameters
    ----------
    corpus : Corpus
        What it is trained on.
    config : ModelConfig
        The model.
    grows : bool, optional
        Whether it gets room for all words of the training split.
    word_classes : bool, optional
        Whether the vocabulary has classes of unknown words.

    Returns
    -------
    ModelConfig
        The same, or with a larger vocabulary. The loss of a model of subwords leaves out those that continue a word.
    """
    words = Vocabulary.from_sentences(corpus.train.words, None, word_classes)
    if grows and len(words) > config.vocabulary_size:
        config = config.with_vocabulary(len(words))
    return replace(config, ignore_pad=True) if corpus.tokenizer.kind == "subwords" else config


@settings(RecordError)
class CorpusRecord:
    """Record of a corpus: identifies it, and lets a trained model be used without it.

    Attributes
    ----------
    name : str
        Of the corpus.
    sha256 : str
        Digest of its label lists and splits as read.
    intent_labels, slot_labels : list of str
        The labels by id.
    vocabulary : list of str
        Tokens by id.
    tokenizer : str or None
        As `Tokenizer.to_text` writes it; None for words between spaces.
    """

    name: str
    sha256: str
    intent_labels: list[str]
    slot_labels: list[str]
    vocabulary: list[str]
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        for name, labels, first in (
            ("intent_labels", self.intent_labels, ()),
            ("slot_labels", self.slot_labels, (PAD,)),
            ("vocabulary", self.vocabulary, SPECIAL),
        ):
            if not labels or tuple(labels[: len(first)]) != first:
                raise RecordError(f"{name} begin with {labels[:3]}: they must begin with {first or 'a label'}")
            if len(set(labels)) < len(labels):
                raise RecordError(f"{name} have an entry twice")
        if OUTSIDE not in self.slot_labels:
            raise RecordError(f"slot_labels lack {OUTSIDE}, which words outside all slots have")

    @classmethod
    def of(cls, corpus: Corpus, config: ModelConfig | ModuleConfig, word_classes: bool = False) -> "CorpusRecord":
        vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size, word_classes)
        return cls(
            name=corpus.name,
            sha256=corpus_digest(corpus),
            intent_labels=list(corpus.intent_labels),
            slot_labels=list(corpus.slot_labels),
            vocabulary=vocabulary.to_list(),
            tokenizer=None if corpus.tokenizer.is_default else corpus.tokenizer.to_text(),
        )

    def without_splits(self, folder: Path) -> Corpus:
        """Return the corpus without its utterances, to label sentences; `folder` is for messages."""
        tokenizer = SPACES if self.tokenizer is None else Tokenizer.from_text(self.tokenizer)
        return Corpus(
            self.name, folder, self.intent_labels, self.slot_labels, Split(), Split(), Split(), tokenizer=tokenizer
        )

    def is_of(self, corpus: Corpus) -> bool:
        return self.sha256 == corpus_digest(corpus)

    def relabelled(self, corpus: Corpus) -> Corpus:
        """Return another corpus with this one's label ids, to score a model of this one on it.

        Raises CorpusError if it has labels that this one lacks, and this one has no UNK to stand for them; or another
        tokenizer.
        """
        if self.without_splits(corpus.folder).tokenizer != corpus.tokenizer:
            raise CorpusError(
                f"{corpus.folder} has another tokenizer than {self.name}, the corpus of the run; import it again with "
                "the run's --tokenizer"
            )
        for kind, known, used in (
            ("intent", self.intent_labels, {i for name in SPLIT_NAMES for i in corpus.split(name).intents}),
            ("slot", self.slot_labels, {s for name in SPLIT_NAMES for tags in corpus.split(name).slots for s in tags}),
        ):
            unknown = sorted(used - set(known))
            if unknown and UNK not in known:
                raise CorpusError(
                    f"{corpus.folder} has {kind} label {unknown[0]!r}, which {self.name}, the corpus of the run, has "
                    "not, and no UNK to stand for it; evaluate on a corpus with the labels of the run's"
                )
        return replace(corpus, intent_labels=self.intent_labels, slot_labels=self.slot_labels)


def corpus_digest(corpus: Corpus) -> str:
    splits = [corpus.split(name) for name in SPLIT_NAMES]
    content = [corpus.intent_labels, corpus.slot_labels, *([s.words, s.slots, s.intents] for s in splits)]
    if not corpus.tokenizer.is_default:
        content.append(corpus.tokenizer.to_text())
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
