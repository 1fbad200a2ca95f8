"""Augmentation of training utterances: slot substitution and word dropout.

In a corpus of a few thousand utterances each city occurs in few sentences, and the test split has other cities in the
same contexts. Every epoch draws new variants from the training split, so that the model learns a word's context.
"""

from collections import Counter, defaultdict

import numpy as np
from pydantic import Field

from bttlab.util.settings import settings

from .corpus import OUTSIDE, PAD, Corpus, CorpusError, Split
from .samples import Samples, encode
from .spans import slots_of
from .vocabulary import Vocabulary


@settings(CorpusError)
class Augmentation:
    """Augmentation of the training split; dev and test do not change.

    Parameters
    ----------
    word_dropout : float
        The a in a / (a + n), the probability that a word which occurs n times in the training split is replaced by an
        unknown word; 0 drops no words. Rare words, whose embeddings are trained least, are dropped most often.
    slot_substitution : float
        Probability, in [0, 1], that a slot's value is replaced by another value of the same type. The type is the part
        of a label after its last dot: toloc.city_name and fromloc.city_name have the same values.

    Raises
    ------
    CorpusError
        If a value is outside its range.
    """

    word_dropout: float = Field(default=0.0, ge=0)
    slot_substitution: float = Field(default=0.0, ge=0, le=1)


class Augmenter:
    """Makes the augmented samples of an epoch, with the slot values and the word frequencies of the training split.

    Parameters
    ----------
    augmentation : Augmentation
        Its probabilities.
    corpus : Corpus
        Whose training split is augmented.
    vocabulary : Vocabulary
        Encodes the words.
    config : ModelConfig or ModuleConfig
        The model that gets the samples.
    """

    def __init__(self, augmentation: Augmentation, corpus: Corpus, vocabulary: Vocabulary, config):
        self._augmentation, self._corpus, self._vocabulary, self._config = augmentation, corpus, vocabulary, config
        counts = Counter(word for words in corpus.train.words for word in words)
        tokens = vocabulary.to_list()
        known = [token in vocabulary for token in tokens]
        occurrences = np.array(
            [counts[token] if is_word else np.inf for token, is_word in zip(tokens, known, strict=True)]
        )
        self._dropout = augmentation.word_dropout / (augmentation.word_dropout + np.maximum(occurrences, 1))
        self._unknown = np.array([vocabulary.unknown_token(token) for token in tokens], np.int32)
        self._values = _slot_values(corpus.train)

    def samples(self, utterances: np.ndarray, seed: int, epoch: int) -> Samples:
        """Return augmented training utterances, by index; each depends only on `seed`, `epoch` and its index."""
        draws = [np.random.Generator(np.random.PCG64([seed, epoch, 1 + int(i)])) for i in utterances]
        train = self._corpus.train
        varied = [self._substitute(train.words[i], train.slots[i], d) for i, d in zip(utterances, draws, strict=True)]
        words, slots = ([pair[k] for pair in varied] for k in (0, 1))
        intents = [train.intents[i] for i in utterances]
        samples = encode(Split(words, slots, intents), self._vocabulary, self._corpus, self._config)
        chances = np.array([draw.random(self._config.sequence_length) for draw in draws])
        dropped = chances.reshape(samples.tokens.shape) < self._dropout[samples.tokens]
        tokens = np.where(dropped, self._unknown[samples.tokens], samples.tokens)
        return Samples(tokens, samples.lengths, samples.intents, samples.slots)

    def _substitute(self, words: list[str], tags: list[str], draw: np.random.Generator) -> tuple[list[str], list[str]]:
        new_words, new_tags = [], []
        for begin, end, label in slot_values(tags):
            value, pads = words[begin:end], [tag == PAD for tag in tags[begin:end]]
            if label != OUTSIDE and draw.random() < self._augmentation.slot_substitution:
                choices = self._values[type_of(label)]
                choice = choices[draw.integers(len(choices))]
                if not any(not pad for _, pad in choice[1:]) or f"I-{label}" in self._corpus.slot_labels:
                    value, pads = [word for word, _ in choice], [pad for _, pad in choice]
            new_words += value
            new_tags += (
                tags[begin:end]
                if label == OUTSIDE
                else [
                    f"B-{label}",
                    *(PAD if pad else f"I-{label}" for pad in pads[1:]),
                ]
            )
        return new_words, new_tags


def slot_values(tags: list[str]) -> list[tuple[int, int, str]]:
    """Return (begin, end, label) of each slot's value and of each other word; a value begins with a B- tag."""
    return [(begin, end, slot if tags[begin][:2] == "B-" else OUTSIDE) for begin, end, slot in slots_of(tags)]


def type_of(label: str) -> str:
    """Return a label's type: toloc.city_name and fromloc.city_name are both city_name."""
    return label.rpartition(".")[2]


def _slot_values(split: Split) -> dict[str, list[tuple[tuple[str, bool], ...]]]:
    """Return the distinct slot values of each type, sorted; True marks a subword that continues a word."""
    values = defaultdict(set)
    for words, tags in zip(split.words, split.slots, strict=True):
        for begin, end, label in slot_values(tags):
            if label != OUTSIDE:
                pads = (tag == PAD for tag in tags[begin:end])
                values[type_of(label)].add(tuple(zip(words[begin:end], pads, strict=True)))
    return {kind: sorted(texts) for kind, texts in values.items()}
