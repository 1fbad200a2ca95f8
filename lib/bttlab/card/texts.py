"""Texts for a model of transformers: columns of a table, tokens, labels, scores."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from bttlab.data import Samples
from bttlab.model import Predictions
from bttlab.model.choices import IGNORED
from bttlab.tensor import VocabularyCut
from bttlab.util.errors import BttlabError

HELD_OUT = 10  # without a dev split, one of this number of training samples is for it
LEAST = 2  # tokens of a sample
CHUNKS = re.compile(r"O|[BIES]-.+")  # names of labels that are chunks
OUTSIDE = "O"


@dataclass(frozen=True)
class Texts:
    """Texts as a tokenizer has them: special tokens included.

    `ids`, `types`: int64 of shape (n, length), 0 after the end. `lengths`: of shape (n,). `cut`: how many texts are
    longer than `length` tokens, and have lost their end. `words`: of texts that are lists of words, the place of each
    word's first token, int64; -1 if it has none.
    """

    ids: np.ndarray
    types: np.ndarray
    lengths: np.ndarray
    cut: int
    words: list[np.ndarray] | None = None

    @property
    def used(self) -> np.ndarray:
        """The ids that occur, in ascending order."""
        return np.unique(self.ids[np.arange(self.ids.shape[1]) < self.lengths[:, None]])

    def __str__(self) -> str:
        length = self.ids.shape[1]
        lost = "" if self.words is None else f", {sum((row < 0).sum() for row in self.words):,} words without a token"
        return f"{len(self.ids)} samples" + (f", {self.cut} cut to {length} tokens" if self.cut else "") + lost

    def samples(self, labels: Sequence[Any] | np.ndarray, cut: VocabularyCut | None = None, words: int = 0) -> Samples:
        """Return samples of these texts and labels: one for each text, or for each of its words.

        `cut`: of the model's vocabulary. `words`: rows of the model's table, if it is one of `SentencePairs`. A word's
        first token has its label, the others have -100.
        """
        is_token = np.arange(self.ids.shape[1]) < self.lengths[:, None]
        ids = self.ids if cut is None else cut.ids(np.where(is_token, self.ids, cut.kept[0]))
        ids = np.where(is_token, ids + words * self.types, 0)
        slots, intents = np.zeros(ids.shape, np.int32), np.zeros(len(ids), np.int32)
        if self.words is None:
            intents[:] = labels
        else:
            slots[:] = IGNORED
            for row, first, of_words in zip(slots, self.words, labels, strict=True):
                row[first[first >= 0]] = np.asarray(of_words)[first >= 0]
        return Samples(ids.astype(np.int32), self.lengths.astype(np.int32), intents, slots)

    def predicted(self, found: Predictions) -> Any:
        """Return the labels that were predicted: int32 of shape (n,), or for each text of its words, -1 without one."""
        if self.words is None:
            return found.intents
        rows = zip(found.slots, self.words, strict=True)
        return [np.where(first < 0, -1, row[first]).astype(np.int32) for row, first in rows]


def tokenized(tokenizer: Any, texts: Sequence[Any], pairs: Sequence[str] | None, length: int) -> Texts:
    """Return texts, pairs of texts, or lists of words, by a tokenizer of transformers.

    Raises BttlabError if there are no texts, one of them is not a text, or has too few tokens.
    """
    if not callable(tokenizer):
        raise BttlabError(f"tokenizer is {tokenizer!r:.40}: give the model's own, as of AutoTokenizer")
    if not texts:
        raise BttlabError("there are no texts: give at least one row")
    by_words = has_words(texts)
    if by_words and pairs is not None:
        raise BttlabError("pair is for texts, and the rows are lists of words: leave pair out")
    for column in (texts, pairs or ()):
        is_right = _is_list_of_words if by_words and column is texts else lambda x: isinstance(x, str)
        bad = next((n for n, x in enumerate(column) if not is_right(x)), None)
        if bad is not None:
            what = "a list of words" if by_words else "a text"
            raise BttlabError(f"row {bad}: {column[bad]!r:.40} is not {what}")
    if pairs is not None and len(pairs) != len(texts):
        raise BttlabError(f"there are {len(texts)} texts and {len(pairs)} of the pair: give as many of both")
    second = () if pairs is None else (list(pairs),)
    tokens: Any = tokenizer  # after `callable` it returns an object
    rows: Any = [list(map(str, row)) for row in texts] if by_words else list(texts)
    given = {"is_split_into_words": True} if by_words else {}
    whole = tokens(rows, *second, **given)["input_ids"]
    found = tokens(rows, *second, truncation=True, max_length=length, **given)
    ids, types = np.zeros((2, len(texts), length), np.int64)
    lengths = np.array([len(row) for row in found["input_ids"]])
    if (lengths < LEAST).any():
        row = int(np.argmax(lengths < LEAST))
        raise BttlabError(f"row {row}: {texts[row]!r:.40} has {lengths[row]} tokens, and a sample has {LEAST} or more")
    for n, row in enumerate(found["input_ids"]):
        ids[n, : len(row)] = row
    for n, row in enumerate(found.get("token_type_ids", ())):  # not every tokenizer has them
        types[n, : len(row)] = row
    words = _first_tokens(found, rows) if by_words else None
    return Texts(ids, types, lengths, sum(len(row) > length for row in whole), words)


def has_words(texts: Sequence[Any]) -> bool:
    """Return True if rows are lists of words, not texts."""
    return any(isinstance(x, list | tuple | np.ndarray) for x in texts[:1])


def _is_list_of_words(row: Any) -> bool:
    return isinstance(row, list | tuple | np.ndarray) and len(row) > 0 and all(isinstance(x, str) for x in row)


def _first_tokens(found: Any, rows: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Return the place of the first token of each word, or -1."""
    if not getattr(found, "is_fast", False):
        raise BttlabError("the tokenizer does not say which token is of which word: take a fast one (use_fast=True)")
    places = []
    for n, row in enumerate(rows):
        first = np.full(len(row), -1, np.int64)
        for place, word in reversed(list(enumerate(found.word_ids(n)))):
            if word is not None:
                first[word] = place
        if (first < 0).all():
            raise BttlabError(f"row {n}: none of its {len(row)} words has a token: leave it out")
        if (first == 0).any():
            raise BttlabError(
                f"row {n}: the first token is of the word {row[0]!r:.40}, and labels of tokens are those from the "
                "second on: have the tokenizer put a token such as [CLS] in front"
            )
        places.append(first)
    return places


def column(table: Any, name: str) -> list[Any]:
    """Return a column of a list of dicts, or of a table with columns by name."""
    if isinstance(table, str | PathLike):
        raise BttlabError(f"{table} is a path, not a table: read it, as by pandas.read_csv(path, sep='\\t')")
    is_list = isinstance(table, list | tuple)
    try:
        return [row[name] for row in table] if is_list else list(table[name])
    except (KeyError, IndexError, TypeError):
        columns = getattr(table, "column_names", None) or getattr(table, "columns", None)
        if columns is None:
            columns = table.keys() if isinstance(table, Mapping) else table[0] if table else ()
        known = ", ".join(map(str, columns)) if isinstance(columns, Iterable) else "no columns"
        raise BttlabError(f"the table has no column {name!r} in each row; it has {known}") from None


def held_out(table: Any, names: Sequence[str]) -> list[dict[str, list[Any]]]:
    """Divide a table into training and dev split: each tenth row is for dev."""
    columns = {name: column(table, name) for name in names}
    if len(columns[names[0]]) < HELD_OUT:
        raise BttlabError(f"{len(columns[names[0]])} rows are too few to hold out every tenth: give dev=")
    is_dev = lambda n: n % HELD_OUT == HELD_OUT - 1  # noqa: E731
    return [
        {name: [x for n, x in enumerate(values) if is_dev(n) == wanted] for name, values in columns.items()}
        for wanted in (False, True)
    ]


def labels_of(rows: Sequence[Any], labels: Sequence[Any]) -> list[Any]:
    """Return the labels of texts, or of all words in a list.

    Raises BttlabError if there are more or fewer labels than texts, or words.
    """
    if len(rows) != len(labels):
        raise BttlabError(f"there are {len(rows)} texts and {len(labels)} labels: give a label for each text")
    if not has_words(rows):
        bad = next((n for n, x in enumerate(labels) if isinstance(x, list | tuple | np.ndarray)), None)
        if bad is not None:
            raise BttlabError(
                f"row {bad}: {labels[bad]!r:.40} are several labels, and a text has one: give each set of labels a "
                "name, such as 'flight#airfare'; or, for a label of each word, a list of words"
            )
        return list(labels)
    for n, (words, of_words) in enumerate(zip(rows, labels, strict=True)):
        if isinstance(of_words, str) or not isinstance(of_words, Iterable) or len(words) != len(list(of_words)):
            count = 1 if isinstance(of_words, str) or not isinstance(of_words, Iterable) else len(list(of_words))
            raise BttlabError(f"row {n}: {len(words)} words and {count} labels: give a label for each word, in a list")
    return [x for of_words in labels for x in of_words]


def _is_class(label: Any) -> bool:
    return isinstance(label, str | int | np.integer) and not isinstance(label, bool)


def label_ids(model: Any, labels: Sequence[Any]) -> Callable[[Any], int]:
    """Return the function from labels to class numbers; write names of classes into the model's configuration."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "num_labels"):
        raise BttlabError(f"{type(model).__name__} is no classifier of transformers: its config has no num_labels")
    count, bad = config.num_labels, next((x for x in labels if not _is_class(x)), None)
    if bad is not None or None in labels:
        raise BttlabError(
            f"label {bad!r:.40} is no class: give whole numbers, or names in text; other numbers need a loss that "
            "the card does not have"
        )
    if all(isinstance(x, int | np.integer) for x in labels):
        bad = next((x for x in labels if not 0 <= x < count), None)
        if bad is not None:
            raise BttlabError(
                f"label {bad} is not one of the model's {count} classes: from_pretrained(…, num_labels=…)"
            )
        return int
    ids = dict(config.label2id)
    if ids.keys() == {f"LABEL_{n}" for n in range(count)} and not set(labels) <= ids.keys():
        names = sorted({str(x) for x in labels})
        if len(names) > count:
            known = f"the data have {len(names)} labels, the model has {count} classes"
            raise BttlabError(f"{known}: from_pretrained(…, num_labels={len(names)})")
        ids = {name: n for n, name in enumerate(names)}
        config.label2id = ids | {f"LABEL_{n}": n for n in range(len(names), count)}
        config.id2label = {n: name for name, n in config.label2id.items()}
    bad = next((x for x in labels if x not in ids), None)
    if bad is not None:
        raise BttlabError(f"label {bad!r} is none of the model's: {', '.join(map(str, ids))}")
    return ids.__getitem__


@dataclass(frozen=True)
class Measure:
    """How predictions are compared with labels: `name` is "accuracy", "accuracy of words" or "slot F1".

    `names`: of the classes, if labels of words are chunks (O, B-…, I-…).
    """

    name: str
    names: dict[int, str] | None = None

    @classmethod
    def of(cls, model: Any, by_words: bool) -> "Measure":
        names = dict(model.config.id2label)
        if not by_words:
            return cls("accuracy")
        is_chunks = OUTSIDE in names.values() and all(CHUNKS.fullmatch(x) for x in names.values() if x[:6] != "LABEL_")
        return cls("slot F1", names) if is_chunks else cls("accuracy of words")

    def score(self, labels: Sequence[Any] | np.ndarray, predicted: Any) -> float:
        """Return a score from 0 to 1. A word without a token is outside of all chunks, or wrong."""
        if self.name == "accuracy":
            return float((np.asarray(labels) == predicted).mean())
        if self.names is None:
            return float((np.concatenate(labels) == np.concatenate(predicted)).mean())
        from seqeval.metrics import f1_score  # here, because it imports scikit-learn, which takes a second

        named = [[[self._tag(x) for x in row] for row in rows] for rows in (labels, predicted)]
        return float(f1_score(*named, zero_division=0))  # pyright: ignore[reportArgumentType]

    def _tag(self, label: int) -> str:
        name = (self.names or {}).get(int(label), OUTSIDE)
        return name if CHUNKS.fullmatch(name) else OUTSIDE
