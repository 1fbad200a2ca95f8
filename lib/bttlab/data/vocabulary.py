"""Map words to token ids."""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from .corpus import CorpusError
from .tokenizer import PUNCTUATION

PAD_ID, UNK_ID, CLS_ID = 0, 1, 2
SPECIAL = ("[PAD]", "[UNK]", "[CLS]")
# Classes of unknown words: one to four or more digits, digits with other characters, one or two characters, three.
# Longer words without digits are [UNK].
WORD_CLASSES = ("[9]", "[99]", "[999]", "[9999]", "[a9]", "[aa]", "[aaa]")


def word_class(word: str) -> str:
    """Return the token of a word's class by its characters: one of `WORD_CLASSES`, or [UNK]."""
    if word.isdigit():
        return f"[{'9' * min(len(word), 4)}]"
    if any(character.isdigit() for character in word):
        return "[a9]"
    if len(word) <= 3:
        return "[aa]" if len(word) < 3 else "[aaa]"
    return SPECIAL[UNK_ID]


class Vocabulary:
    """Token ids of words: 0 is [PAD], 1 [UNK], 2 [CLS], then the word classes if they are used, then the words.

    Parameters
    ----------
    words : iterable of str
        In the order of their ids.
    word_classes : bool
        Whether an unknown word is encoded as its class (`word_class`) instead of [UNK]: an unknown flight number is
        then still a number of three digits.

    Raises
    ------
    CorpusError
        If a word occurs twice or is a special token.
    """

    def __init__(self, words: Iterable[str], word_classes: bool = False):
        self._first_word = len(SPECIAL) + word_classes * len(WORD_CLASSES)
        self._tokens = [*SPECIAL, *(WORD_CLASSES if word_classes else ()), *words]
        self._ids = {word: i for i, word in enumerate(self._tokens)}
        if len(self._ids) < len(self._tokens):
            twice = next(word for word, count in Counter(self._tokens).items() if count > 1)
            raise CorpusError(f"vocabulary: {twice!r} occurs twice; every word and special token has one id")

    @classmethod
    def from_sentences(
        cls, sentences: Iterable[list[str]], size: int | None, word_classes: bool = False
    ) -> "Vocabulary":
        """Return a vocabulary of the most frequent words, with at most ``size`` tokens in total.

        Words of equal frequency are in alphabetical order. With size None the vocabulary has all words. All other
        words are encoded as unknown words.
        """
        reserved = SPECIAL + WORD_CLASSES if word_classes else SPECIAL
        if size is not None and size <= len(reserved):
            raise CorpusError(
                f"a vocabulary of size {size} has no space for words after {' '.join(reserved)}; use a larger size"
            )
        counts = Counter(word for sentence in sentences for word in sentence if word not in reserved)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked if size is None else ranked[: size - len(reserved)], word_classes)

    @classmethod
    def from_list(cls, tokens: list[str]) -> "Vocabulary":
        """Return the vocabulary with the result of :meth:`to_list`."""
        if tuple(tokens[: len(SPECIAL)]) != SPECIAL:
            raise CorpusError(f"vocabulary: the list begins with {tokens[:3]}, it must begin with {list(SPECIAL)}")
        words = tokens[len(SPECIAL) :]
        if tuple(words[: len(WORD_CLASSES)]) == WORD_CLASSES:
            return cls(words[len(WORD_CLASSES) :], word_classes=True)
        return cls(words)

    def to_list(self) -> list[str]:
        return list(self._tokens)

    @cached_property
    def foreign_punctuation(self) -> str:
        """The punctuation with which no word begins or ends: the corpus has words without it."""
        ends = {end for word in self._tokens[self._first_word :] for end in (word[:1], word[-1:])}
        return "".join(mark for mark in PUNCTUATION if mark not in ends)

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, word: str) -> bool:
        return self._ids.get(word, 0) >= self._first_word

    def token(self, word: str) -> int:
        """Return the id of a word, or :meth:`unknown_token` if it is unknown."""
        return self._ids[word] if word in self else self.unknown_token(word)

    def unknown_token(self, word: str) -> int:
        """Return the id of an unknown word: that of its class, or of [UNK] without word classes."""
        return self._ids[word_class(word)] if self._first_word > len(SPECIAL) else UNK_ID
