"""Corpora in the common layout of joint intent and slot labelling (ATIS, SNIPS).

A corpus is a folder. ``intent_label.txt`` and ``slot_label.txt`` list the labels in the order of their ids. ``train/``,
``dev/`` and ``test/`` each have ``seq.in`` (words), ``seq.out`` (one BIO slot tag for each word) and ``label`` (one
intent), with one utterance in each line. ``tokenizer.json``, if it is there, says what cuts a text into the words; of
subwords, those that continue a word have the tag PAD.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bttlab.util.errors import BttlabError
from bttlab.util.files import write_folder
from bttlab.util.reading import lines_of, read_text

from .tokenizer import FILE as TOKENIZER_FILE
from .tokenizer import SPACES, Tokenizer

SPLIT_NAMES = ("train", "dev", "test")
PAD, UNK, OUTSIDE = "PAD", "UNK", "O"


class CorpusError(BttlabError):
    """A corpus cannot be found, read or used."""


@dataclass(frozen=True)
class Split:
    """n utterances. A slice, or a list of indices, gives another Split.

    Attributes
    ----------
    words : list of list of str
        Of each utterance.
    slots : list of list of str
        A tag of each word, as written in the corpus.
    intents : list of str
        Of each utterance.
    """

    words: list[list[str]] = field(default_factory=list)
    slots: list[list[str]] = field(default_factory=list)
    intents: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: slice | Sequence[int]) -> "Split":
        places = range(len(self))[index] if isinstance(index, slice) else index
        columns: Any = self.words, self.slots, self.intents
        return Split(*([column[i] for i in places] for column in columns))

    def __add__(self, other: "Split") -> "Split":
        return Split(self.words + other.words, self.slots + other.slots, self.intents + other.intents)


@dataclass(frozen=True)
class Corpus:
    """The label lists and the three splits of a corpus; a label's id is its index in its list.

    Attributes
    ----------
    name : str
        Of the corpus.
    folder : path
        That it was read from.
    intent_labels, slot_labels : list of str
        The labels by id.
    train, dev, test : Split
        Its utterances.
    tokenizer : Tokenizer
        What cuts a text into the words.
    """

    name: str
    folder: Path
    intent_labels: list[str]
    slot_labels: list[str]
    train: Split
    dev: Split
    test: Split
    tokenizer: Tokenizer = SPACES

    @property
    def has_slots(self) -> bool:
        """True if there is a label of a slot; a corpus of classes alone has O everywhere."""
        return any(map(_is_chunk_tag, self.slot_labels))

    def split(self, name: str) -> Split:
        if name not in SPLIT_NAMES:
            raise CorpusError(f"split {name!r} is none of {', '.join(SPLIT_NAMES)}")
        return getattr(self, name)


def read_corpus(folder: str | os.PathLike, unknown_labels: str = "error") -> Corpus:
    """Read a corpus from a folder in the common layout.

    Lines may end with CRLF and with spaces; a line that is blank in all three files of a split is ignored.

    Parameters
    ----------
    folder : path
        Of the corpus.
    unknown_labels : {"error", "unk"}
        If an utterance of ``train`` has a label that is not in the label lists, "error" raises an error, "unk" trains
        on UNK instead. In ``dev`` and ``test`` (real ATIS has such labels there) the loss always uses UNK, and the
        scores compare with the label as written, so the prediction never counts as correct.

    Returns
    -------
    Corpus
        Its labels and splits.

    Raises
    ------
    CorpusError
        If a file breaks a rule; the message names the file, the line, the rule and a remedy.
    """
    if unknown_labels not in ("error", "unk"):
        raise CorpusError(f"--unknown-labels={unknown_labels} is neither error nor unk")
    folder = Path(folder)
    intent_labels = _read_labels(folder / "intent_label.txt")
    slot_labels = _read_labels(folder / "slot_label.txt")
    _check_slot_labels(folder / "slot_label.txt", slot_labels)
    tokenizer = _read_tokenizer(folder / TOKENIZER_FILE)
    splits = {}
    for name in SPLIT_NAMES:
        strict = name == "train" and unknown_labels == "error"
        splits[name] = _read_split(folder / name, intent_labels, slot_labels, strict, tokenizer)
    return Corpus(folder.resolve().name, folder, intent_labels, slot_labels, **splits, tokenizer=tokenizer)


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.exists():
        return SPACES
    try:
        return Tokenizer.from_text(read_text(path, CorpusError))
    except CorpusError:
        raise
    except BttlabError as error:
        raise CorpusError(f"{path}: {error}") from None


def _read_lines(path: Path) -> list[str]:
    """Return the stripped lines of a UTF-8 file, without blank lines at its end."""
    files = "intent_label.txt, slot_label.txt and, in each of train, dev and test, seq.in, seq.out and label"
    text = read_text(path, CorpusError, f": a corpus has {files}")
    lines = [line.strip() for line in lines_of(text)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _read_labels(path: Path) -> list[str]:
    labels: dict[str, None] = {}  # in order
    for number, label in enumerate(_read_lines(path), 1):
        if label in labels:
            raise CorpusError(f"{path}, line {number}: label {label!r} is listed twice; remove one")
        if label:
            labels[label] = None
    if not labels:
        raise CorpusError(f"{path} lists no labels; write one in each line")
    return list(labels)


def _check_slot_labels(path: Path, labels: list[str]) -> None:
    if labels[0] != PAD:
        raise CorpusError(f"{path}, line 1: the first slot label is {labels[0]!r}, it must be PAD (id 0 is padding)")
    if OUTSIDE not in labels:
        raise CorpusError(f"{path}: the label O is missing; words outside all slots have it, so add a line with O")
    for label in labels[1:]:
        if label not in (UNK, OUTSIDE) and not _is_chunk_tag(label):
            raise CorpusError(f"{path}: slot label {label!r} is none of PAD, UNK, O, B-… and I-…; correct it")


def _is_chunk_tag(tag: str) -> bool:
    return tag[:2] in ("B-", "I-") and len(tag) > 2


def _read_split(
    folder: Path, intent_labels: list[str], slot_labels: list[str], strict: bool, tokenizer: Tokenizer
) -> Split:
    paths = [folder / "seq.in", folder / "seq.out", folder / "label"]
    lines = [_read_lines(path) for path in paths]
    if len({len(column) for column in lines}) > 1:
        counts = ", ".join(f"{path.name} {len(column)}" for path, column in zip(paths, lines, strict=True))
        raise CorpusError(f"{folder}: unequal numbers of lines ({counts}); each utterance needs one line in every file")
    known_intents, known_slots = set(intent_labels), set(slot_labels)
    split = Split()
    for number, (sentence, tags, intent) in enumerate(zip(*lines, strict=True), 1):
        if not (sentence or tags or intent):
            continue
        words, slots = sentence.split(), tags.split()
        if not words or len(words) != len(slots):
            raise CorpusError(
                f"{paths[0]}, line {number}: {len(words)} words, but {len(slots)} tags in seq.out; "
                "an utterance has at least one word, and every word one tag"
            )
        for place, tag in enumerate(slots):
            if tag == PAD and place and tokenizer.kind == "subwords":
                continue
            if tag != OUTSIDE and not _is_chunk_tag(tag):
                raise CorpusError(f"{paths[1]}, line {number}: slot tag {tag!r} is none of O, B-… and I-…; correct it")
            if tag not in known_slots:
                _check_unknown("slot", tag, paths[1], number, slot_labels, strict)
        if not intent or intent == UNK:
            raise CorpusError(f"{paths[2]}, line {number}: {intent!r} is not an intent; name the utterance's intent")
        if intent not in known_intents:
            _check_unknown("intent", intent, paths[2], number, intent_labels, strict)
        split.words.append(words)
        split.slots.append(slots)
        split.intents.append(intent)
    if not len(split):
        raise CorpusError(f"{paths[0]} has no utterances; every split needs at least one")
    return split


def _check_unknown(kind: str, label: str, path: Path, line: int, labels: list[str], strict: bool) -> None:
    """Raise CorpusError unless a label that is not listed may be replaced by UNK."""
    where = f"{path}, line {line}: {kind} label {label!r} is not among the {len(labels)} of {path.parents[1]}"
    if UNK not in labels:
        raise CorpusError(f"{where}, and {kind}_label.txt has no UNK to replace it; add the label or UNK to it")
    if strict:
        raise CorpusError(f"{where}; add it to {kind}_label.txt or pass --unknown-labels=unk")


def files_of(
    intent_labels: Sequence[str],
    slot_labels: Sequence[str],
    splits: Mapping[str, Split],
    tokenizer: Tokenizer | None = None,
) -> dict[str, bytes]:
    """Return the files of a corpus in the common layout, by relative path; labels are in the order of their ids."""
    lines = {"intent_label.txt": intent_labels, "slot_label.txt": slot_labels}
    for name, split in splits.items():
        lines[f"{name}/seq.in"] = [" ".join(words) for words in split.words]
        lines[f"{name}/seq.out"] = [" ".join(tags) for tags in split.slots]
        lines[f"{name}/label"] = split.intents
    files = {name: "".join(f"{line}\n" for line in text).encode() for name, text in lines.items()}
    if tokenizer is not None and not tokenizer.is_default:
        files[TOKENIZER_FILE] = tokenizer.to_text().encode()
    return files


def store_corpus(files: Mapping[str, bytes], folder: str | os.PathLike) -> Path:
    """Write a corpus atomically into a new folder, files by relative path.

    Raises CorpusError if the folder cannot be written, or there is one of that name.
    """
    try:
        write_folder(Path(folder), files)
    except OSError as error:
        raise CorpusError(f"cannot write a corpus to {folder}: {error.strerror}; choose another folder") from error
    return Path(folder)
