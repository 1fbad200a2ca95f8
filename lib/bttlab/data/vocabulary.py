"""Words to token ids."""

from collections import Counter
from collections.abc import Iterable

from .corpus import CorpusError

PAD_ID, UNK_ID, CLS_ID = 0, 1, 2
SPECIAL = ("[PAD]", "[UNK]", "[CLS]")


class Vocabulary:
    """Token ids of words: 0 is [PAD], 1 [UNK], 2 [CLS], from 3 on the words in the order given.

    Parameters
    ----------
    words : iterable of str
        Distinct words without the special tokens.

    Raises
    ------
    CorpusError
        If a word comes twice or is a special token.
    """

    def __init__(self, words: Iterable[str]):
        self._tokens = [*SPECIAL, *words]
        self._ids = {word: i for i, word in enumerate(self._tokens)}
        if len(self._ids) < len(self._tokens):
            twice = next(word for word, count in Counter(self._tokens).items() if count > 1)
            raise CorpusError(f"vocabulary: {twice!r} comes twice; every word and special token has one id")

    @classmethod
    def from_sentences(cls, sentences: Iterable[list[str]], size: int) -> "Vocabulary":
        """Take the most frequent words, ties in alphabetical order, so that there are at most ``size`` tokens in all.

        Words that do not fit become [UNK] when encoded, as every word that is not in the vocabulary.
        """
        if size <= len(SPECIAL):
            raise CorpusError(f"a vocabulary of size {size} has no room beside {' '.join(SPECIAL)}; take a larger one")
        counts = Counter(word for sentence in sentences for word in sentence if word not in SPECIAL)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked[: size - len(SPECIAL)])

    @classmethod
    def from_list(cls, tokens: list[str]) -> "Vocabulary":
        """The vocabulary that :meth:`to_list` wrote."""
        if tuple(tokens[: len(SPECIAL)]) != SPECIAL:
            raise CorpusError(f"vocabulary: the list begins with {tokens[:3]}, it must begin with {list(SPECIAL)}")
        return cls(tokens[len(SPECIAL) :])

    def to_list(self) -> list[str]:
        """All tokens in the order of their ids."""
        return list(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, word: str) -> bool:
        return self._ids.get(word, 0) >= len(SPECIAL)

    def token(self, word: str) -> int:
        """The id of a word, that of [UNK] for a word that is not in the vocabulary."""
        return self._ids[word] if word in self else UNK_ID
