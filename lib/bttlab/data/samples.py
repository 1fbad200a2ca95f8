"""Encode utterances as fixed-size integer arrays, the input of every trainer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from bttlab.util.errors import BttlabError

from .corpus import PAD, UNK, Corpus, CorpusError, Split
from .vocabulary import CLS_ID, PAD_ID, Vocabulary


@dataclass(frozen=True)
class Samples:
    """n encoded utterances; indexing with an integer, a slice or an index array gives Samples.

    Parameters
    ----------
    tokens : np.ndarray
        Int32, (n, sequence_length): ids of [CLS], the words, then [PAD].
    lengths : np.ndarray
        Int32, (n,): number of real tokens, [CLS] included.
    intents : np.ndarray
        Int32, (n,): intent label ids.
    slots : np.ndarray
        Int32, (n, sequence_length): slot label ids; 0 (PAD) at [CLS] and at padding, which are never scored.

    Raises
    ------
    BttlabError
        If an array is not int32 or the shapes do not agree.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    intents: np.ndarray
    slots: np.ndarray

    def __post_init__(self):
        for field in fields(self):
            array = getattr(self, field.name)
            if not isinstance(array, np.ndarray) or array.dtype != np.int32:
                kind = getattr(array, "dtype", type(array).__name__)
                raise BttlabError(f"samples: {field.name} is {kind}; it must be an array of int32")
        n = len(self.tokens)
        if self.tokens.ndim != 2 or self.slots.shape != self.tokens.shape:
            raise BttlabError(
                f"samples: tokens {self.tokens.shape} and slots {self.slots.shape} must both be (n, sequence_length)"
            )
        if self.lengths.shape != (n,) or self.intents.shape != (n,):
            raise BttlabError(f"samples: lengths {self.lengths.shape} and intents {self.intents.shape} must be ({n},)")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int | slice | np.ndarray) -> "Samples":
        rows = [index] if isinstance(index, int | np.integer) else index
        return Samples(self.tokens[rows], self.lengths[rows], self.intents[rows], self.slots[rows])

    def validate(self, config) -> None:
        """Check that these samples fit a model's sequence_length, vocabulary_size, intents and slots.

        Raises BttlabError, whose message names the first sample that does not fit, its value and the rule.
        """
        length = config.sequence_length
        if self.tokens.shape[1] != length:
            raise BttlabError(f"samples have {self.tokens.shape[1]} tokens, the model has {length}: encode them again")
        self._check_range("length", self.lengths, 2, length + 1)
        words = config.vocabulary_size
        self._check_range("token", self.tokens, 0, words * getattr(config, "token_types", 1))
        self._check_range("intent label", self.intents, 0, config.intents)
        ignored, padding = config.ignore_index, np.arange(length) >= self.lengths[:, None]
        slots = self.slots if ignored is None else np.where(self.slots == ignored, 0, self.slots)
        self._check_range("slot label", slots, 0, config.slots)
        for name, array in (("token", self.tokens), ("slot label", slots)):
            self._refuse(padding & (array != 0), name, array, "it must be 0 after the sample's length")
        if ignored is not None:
            unlabelled = (padding | (self.slots == ignored))[:, 1:].all(1, keepdims=True)
            rule = f"a word must have another label, since the model ignores {ignored}"
            self._refuse(unlabelled, "slot label", self.slots, rule)
        is_early = ~padding & (self.tokens % words < getattr(config, "least_token", 0))
        rule = "the model takes id 0 as padding: number the tokens of samples from 1 on"
        self._refuse(is_early, "token", self.tokens, rule)
        unused = getattr(config, "padding_token", None)
        if unused is not None:
            rule = f"the model takes id {unused} as padding, which samples have as id 0 after their length"
            self._refuse(~padding & (self.tokens % words == unused), "token", self.tokens, rule)

    def _check_range(self, name: str, array: np.ndarray, low: int, high: int) -> None:
        self._refuse((array < low) | (array >= high), name, array, f"it must be at least {low} and below {high}")

    def _refuse(self, bad: np.ndarray, name: str, array: np.ndarray, rule: str) -> None:
        if bad.any():
            first, *rest = np.argwhere(bad)[0].tolist()
            place = f", position {rest[0]}" if rest else ""
            raise BttlabError(f"sample {first}{place}: {name} {array[(first, *rest)]}: {rule}")


def encoding_report(split: Split, vocabulary: Vocabulary, corpus: Corpus, config) -> str:
    """Count in a line what `encode` cuts and what it replaces by [UNK] or UNK. Scores compare with the split.

    Parameters
    ----------
    split : Split
        The utterances.
    vocabulary : Vocabulary
        Encodes the words.
    corpus : Corpus
        Whose labels are encoded.
    config : ModelConfig or ModuleConfig
        The model.

    Returns
    -------
    str
        One line.
    """
    most = config.sequence_length - 1
    words = [word for sentence in split.words for word in sentence[:most]]
    number = sum(map(len, split.words))
    parts = [f"{len(split)} utterances, {number} words"]
    if cut := sum(len(sentence) > most for sentence in split.words):
        parts.append(f"{cut} too long (cut by {number - len(words)} words)")
    if unknown := sum(word not in vocabulary for word in words):
        parts.append(f"{unknown} words unknown to the vocabulary")
    tags = Counter(tag for tags in split.slots for tag in tags[:most] if "tagging" in config.task)
    intents = Counter(split.intents if "classification" in config.task else ())
    for kind, counts, labels in (("slot tags", tags, corpus.slot_labels), ("intents", intents, corpus.intent_labels)):
        if unlisted := {label: count for label, count in sorted(counts.items()) if label not in labels}:
            listed = ", ".join(f"{label} {count}" for label, count in unlisted.items())
            parts.append(f"{sum(unlisted.values())} {kind} not in the label list ({listed})")
    return "; ".join(parts)


def encode(split: Split, vocabulary: Vocabulary, corpus: Corpus, config) -> Samples:
    """Encode the utterances of a split, with the ids of the corpus's label lists.

    Utterances with more words than the model's sequence length allows are cut, words that are not in the vocabulary
    become unknown tokens, and labels that are not in the corpus's lists become UNK; `encoding_report` counts all
    three. Labels that the model does not predict are 0; the slot labels of a language model are the tokens. A model
    may have more labels than the corpus.

    Parameters
    ----------
    split : Split
        n utterances.
    vocabulary : Vocabulary
        Has at most the model's number of tokens.
    corpus : Corpus
        Whose labels are encoded.
    config : ModelConfig or ModuleConfig
        The model.

    Returns
    -------
    Samples
        Of the n utterances.

    Raises
    ------
    CorpusError
        If the corpus has more labels, or the vocabulary more tokens, than the model.
    """
    has_intents, has_slots = "classification" in config.task, "tagging" in config.task
    for kind, labels, limit in (
        ("intent", corpus.intent_labels if has_intents else [], config.intents),
        ("slot", corpus.slot_labels if has_slots else [], config.slots),
    ):
        if len(labels) > limit:
            raise CorpusError(
                f"{corpus.folder / f'{kind}_label.txt'} has {len(labels)} {kind} labels, the model {limit}; "
                f"use a corpus with at most {limit}, or write {kind}s = {len(labels)} into a file for --model, or, "
                f"in a module, give the last layer {len(labels)} outputs"
            )
    if len(vocabulary) > config.vocabulary_size:
        size = config.vocabulary_size
        raise CorpusError(f"the vocabulary has {len(vocabulary)} tokens, the model {size}; build it with size={size}")
    predicts_tokens = "language model" in config.task
    if predicts_tokens and len(vocabulary) > config.slots:
        raise CorpusError(
            f"the vocabulary has {len(vocabulary)} tokens, but the model has {config.slots} logits; give its last "
            "layer one output for each row of its embedding table"
        )
    intent_ids = {label: i for i, label in enumerate(corpus.intent_labels)}
    slot_ids = {label: i for i, label in enumerate(corpus.slot_labels)}
    length = config.sequence_length
    tokens = np.full((len(split), length), PAD_ID, np.int32)
    slots = np.full((len(split), length), slot_ids[PAD], np.int32)
    lengths = np.zeros(len(split), np.int32)
    intents = np.zeros(len(split), np.int32)
    for i, (words, tags, intent) in enumerate(zip(split.words, split.slots, split.intents, strict=True)):
        words, tags = words[: length - 1], tags[: length - 1]
        end = 1 + len(words)
        tokens[i, 0] = CLS_ID
        tokens[i, 1:end] = [vocabulary.token(word) for word in words]
        if has_slots:
            slots[i, 1:end] = [slot_ids[tag if tag in slot_ids else UNK] for tag in tags]
        if has_intents:
            intents[i] = intent_ids[intent if intent in intent_ids else UNK]
        lengths[i] = end
    if predicts_tokens:
        slots[:, 1:] = tokens[:, 1:]
    return Samples(tokens, lengths, intents, slots)


Arrays = TypeVar("Arrays")


def joined(parts: Sequence[Arrays]) -> Arrays:
    """Return samples, or predictions, one after the other: dataclasses of arrays."""
    first: Any = parts[0]
    return type(first)(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(first)))


def encoded_split(corpus: Corpus, name: str, vocabulary: Vocabulary, config) -> tuple[Samples, str]:
    """Return the samples of a corpus's split, and a line that counts what was cut and replaced.

    Parameters
    ----------
    corpus : Corpus
        The corpus.
    name : {"train", "dev", "test"}
        Of the split.
    vocabulary : Vocabulary
        Encodes the words.
    config : ModelConfig or ModuleConfig
        The model.

    Returns
    -------
    samples : Samples
        As `encode` returns them.
    report : str
        As `encoding_report` returns it.

    Raises
    ------
    CorpusError
        If there is no such split, and where `encode` raises it.
    """
    arguments = corpus.split(name), vocabulary, corpus, config
    return encode(*arguments), f"{corpus.name} {name}: {encoding_report(*arguments)}"


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of n samples in an epoch, the same on every machine.

    Parameters
    ----------
    n : int
        Number of samples.
    seed : int
        Of the run, at least 0.
    epoch : int
        From 0 on.

    Returns
    -------
    np.ndarray
        Int64, (n,): a permutation of 0..n-1.

    Raises
    ------
    BttlabError
        If the seed is negative.
    """
    if seed < 0:
        raise BttlabError(f"seed {seed} is negative; take 0 or more")
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(n)


def epoch_lengths(corpus: Corpus, sequence_length: int) -> dict[int, int]:
    """Return the number of samples of each length that a corpus's training split has.

    Parameters
    ----------
    corpus : Corpus
        The corpus.
    sequence_length : int
        Most tokens of a sample: [CLS], then the words that fit.

    Returns
    -------
    dict of int to int
        Number of samples by their number of real tokens.
    """
    return dict(Counter(min(1 + len(words), sequence_length) for words in corpus.train.words))
