"""Import utterances from CSV, JSON lines, CoNLL or a folder of texts into a corpus in the common layout."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from bttlab.util.files import read_regular
from bttlab.util.json_files import JsonError, load_json

from .corpus import OUTSIDE, PAD, PUNCTUATION, SPLIT_NAMES, UNK, CorpusError, Split
from .store import files_of

MOST_BYTES = 1 << 28  # of a file
MOST_FILES = 100_000  # of a folder
MOST_NODES = 10_000  # of a line of JSON
PART = 0.1  # share of the utterances in dev, and in test, if they have no file of their own
NO_INTENT = "none"  # of utterances that have only tags
Utterance = tuple[list[str], list[str] | None, str]  # words, tags, intent
Row = tuple[str, dict]  # position in its file, and values by column


def read_utterances(path: Path, text: str, label: str | None, tags: str | None) -> Split:
    """Read utterances from a file or folder, in the format of its suffix.

    Parameters
    ----------
    path : Path
        .csv or .tsv (the first line names the columns), .jsonl (an object in each line), .conll, .bio or .iob (a word
        in each line with its tag in the last column, the intent as "# intent: NAME", and a blank line after each
        utterance), or a folder with a subfolder for each label, which has a .txt file for each utterance.
    text, label, tags : str
        Columns with the words, the intent, and the tags: one for each word, separated by spaces or as a list.

    Returns
    -------
    Split
        Words in lower case, split at spaces; if there are no tags, without punctuation at their ends. Tags in BIO, O
        if there are none.

    Raises
    ------
    CorpusError
        The message names the place, the rule and a remedy.
    """
    if path.is_dir():
        found = _folder(path)
    elif path.suffix in _TABLES:
        found = (_utterance(row, text, label, tags) for row in _TABLES[path.suffix](path))
    elif path.suffix in (".conll", ".bio", ".iob"):
        found = _conll(path)
    else:
        raise CorpusError(
            f"{path}: its suffix is unknown; use .csv, .tsv, .jsonl, .conll, .bio, .iob, or a folder with a subfolder "
            "of .txt files for each label"
        )
    split = Split([], [], [])
    for words, own, intent in found:
        split.words.append([word.lower() for word in words])
        split.slots.append(_bio(own) if own is not None else [OUTSIDE] * len(words))
        split.intents.append("_".join(intent.split()))
    if not len(split):
        raise CorpusError(f"{path} has no utterances")
    return split


def divided(everything: Split, given: Mapping[str, Split], seed: int) -> dict[str, Split]:
    """Return train, dev and test; dev and test, if not given, are a tenth of the utterances each, chosen at random."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(everything)).tolist()
    count = max(1, round(PART * len(everything)))
    splits = dict(given)
    for name in SPLIT_NAMES[1:]:
        if name not in given:
            splits[name], order = _chosen(everything, sorted(order[:count])), order[count:]
    if not order:
        raise CorpusError(f"{len(everything)} utterances are too few for train, dev and test; give at least 3")
    return {"train": _chosen(everything, sorted(order))} | splits


def corpus_files(splits: Mapping[str, Split]) -> dict[str, bytes]:
    """Return the files of a corpus with these splits, for `store_corpus`. The label lists have all labels in use."""
    intents = sorted({intent for split in splits.values() for intent in split.intents})
    tags = {tag for split in splits.values() for slots in split.slots for tag in slots} - {OUTSIDE}
    tags |= {f"B-{tag[2:]}" for tag in tags}
    return files_of([UNK, *intents], [PAD, UNK, OUTSIDE, *sorted(tags)], splits)


def _chosen(split: Split, places: list[int]) -> Split:
    return Split(*([column[place] for place in places] for column in (split.words, split.slots, split.intents)))


def _text_of(path: Path) -> str:
    try:
        return read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CorpusError(f"{path}: not UTF-8 text; save the file as UTF-8") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror})") from None


def _csv(path: Path) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(_text_of(path)), delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    try:
        for row in reader:
            yield f"{path}, line {reader.line_num}", row
    except csv.Error as error:
        raise CorpusError(f"{path}, line {reader.line_num}: not a row of a table ({error})") from None


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_text_of(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = load_json(line, MOST_NODES)
        except JsonError as error:
            raise CorpusError(f"{path}, line {number}: {error}") from None
        if not isinstance(row, dict):
            raise CorpusError(f"{path}, line {number}: not an object; write one in each line, with the text in a key")
        yield f"{path}, line {number}", row


_TABLES: dict[str, Callable[[Path], Iterator[Row]]] = {".csv": _csv, ".tsv": _csv, ".jsonl": _json_lines}


def _utterance(row: Row, text: str, label: str | None, tags: str | None) -> Utterance:
    where, values = row
    for option, name in (("--text", text), ("--label", label), ("--tags", tags)):
        if name is not None and values.get(name) is None:
            columns = ", ".join(str(key) for key in values if key is not None)
            raise CorpusError(f"{where}: no {name!r}; there are {columns}; name the column with {option}")
    words, own = (None if name is None else _parts(where, values[name]) for name in (text, tags))
    if own is None:
        words = _plain(words)
    if not words:
        raise CorpusError(f"{where}: no words in {text!r}; remove the line")
    if own is not None and len(own) != len(words):
        raise CorpusError(f"{where}: {len(words)} words, but {len(own)} tags; every word has one tag")
    intent = NO_INTENT if label is None else str(values[label])
    if not intent.strip():
        raise CorpusError(f"{where}: {label!r} is empty; name the utterance's intent, or leave the line out")
    return words, own, intent


def _parts(where: str, value: object) -> list[str]:
    parts = value if isinstance(value, list) else str(value).split()
    for part in parts:
        if not isinstance(part, str) or len(part.split()) != 1:
            raise CorpusError(f"{where}: {part!r} is not a word or tag, which has at least one character and no spaces")
    return parts


def _conll(path: Path) -> Iterator[Utterance]:
    words: list[str] = []
    tags: list[str] = []
    intent = NO_INTENT
    for number, line in enumerate([*_text_of(path).split("\n"), ""], 1):
        key, _, value = line.lstrip("# ").partition(":")
        if line.startswith("#") and key.strip() in ("intent", "label"):
            intent = value.strip() or NO_INTENT
        elif columns := [] if line.startswith(("#", "-DOCSTART-")) else line.split():
            if len(columns) < 2:
                raise CorpusError(f"{path}, line {number}: {columns[0]!r} has no tag; write it after the word")
            words.append(columns[0])
            tags.append(columns[-1])
        elif words and not line.startswith("#"):
            yield words, tags, intent
            words, tags, intent = [], [], NO_INTENT


def _folder(folder: Path) -> Iterator[Utterance]:
    paths = sorted(folder.glob("*/*.txt"))
    if len(paths) > MOST_FILES:
        raise CorpusError(f"{folder} has {len(paths):,} texts, more than {MOST_FILES:,}; write them into one .jsonl")
    for path in paths:
        if words := _plain(_text_of(path).split()):
            yield words, None, path.parent.name


def _plain(words: list[str]) -> list[str]:
    return [plain for word in words if (plain := word.strip(PUNCTUATION))]


def _bio(tags: list[str]) -> list[str]:
    """Return tags in BIO: neighbours with the same tag are one chunk, and every chunk begins with B."""
    made, before = [], ""
    for tag in tags:
        kind = tag[2:] if tag[:2] in ("B-", "I-") else "" if tag == OUTSIDE else tag
        begins = tag[:2] == "B-" or kind != before
        made.append(f"{'B' if begins else 'I'}-{kind}" if kind else OUTSIDE)
        before = kind
    return made
