"""Import utterances from CSV, JSON or CoNLL into a corpus in the common layout; docs/import.md lists the formats."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .corpus import OUTSIDE, PAD, PUNCTUATION, SPLIT_NAMES, UNK, CorpusError, Split
from .store import files_of

PART = 0.1  # share of the utterances in dev, and in test, if they have no file of their own
NO_INTENT = "none"  # of utterances that have only tags
_INTENT = re.compile(r"#\s*(?:intent|label)\s*[:=]\s*(.*)")
_TAG = re.compile(r"O|([BIESLU])-(.+)")
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\xad\u200b\u2060\ufeff]")  # joiners are letters' in some scripts
_Row = tuple[str, dict[str, Any]]  # its place, for messages, and its values by column
_Utterance = tuple[str, list[str], list[str] | None, Any]  # its place, words, tags and label


def read_utterances(path: Path, text: str, label: str | None, tags: str | None) -> Split:
    """Read utterances from a file, in the format of its suffix.

    Parameters
    ----------
    path : Path
        .csv or .tsv (the first line names the columns), .jsonl (an object in each line) or .json (a list of objects),
        .conll, .bio or .iob (a word in each line with its tag in the last column, the intent as "# intent: NAME", and
        a blank line after each utterance).
    text, label, tags : str
        Columns with the words, the intent, and the tags, one for each word. Words and tags are separated by spaces, or
        a list. By default "label" or "intent", and "tags", if there are such columns.

    Returns
    -------
    Split
        Words in lower case, without punctuation at their ends unless each word has a tag of its own. Tags in BIO, O if
        there are none.

    Raises
    ------
    CorpusError
        The message names the place, the rule and a remedy.
    """
    if path.suffix in (".conll", ".bio", ".iob"):
        found = _conll(path)
    elif path.suffix in (".csv", ".tsv"):
        found = _columns(_csv(path), text, label, tags)
    elif path.suffix in (".jsonl", ".json"):
        found = _columns(_json(path), text, label, tags)
    else:
        raise CorpusError(f"{path}: its suffix is unknown; use .csv, .tsv, .jsonl, .json, .conll, .bio or .iob")
    split = Split([], [], [])
    for where, words, own_tags, value in found:
        intent = _intent(where, value)
        for part in (intent, *words):
            if hidden := _INVISIBLE.search(part):
                raise CorpusError(f"{where}: {part!r} has the invisible character {hidden[0]!r}; remove it")
        if not words:
            raise CorpusError(f"{where}: no words; remove the line")
        if own_tags is not None and len(own_tags) != len(words):
            raise CorpusError(f"{where}: {len(words)} words, but {len(own_tags)} tags; every word has one tag")
        split.words.append([word.lower() for word in words])
        split.slots.append([OUTSIDE] * len(words) if own_tags is None else _to_bio(where, own_tags))
        split.intents.append(intent)
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
    words, slots, intents = split.words, split.slots, split.intents
    return Split([words[i] for i in places], [slots[i] for i in places], [intents[i] for i in places])


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CorpusError(f"{path}: not UTF-8 text; save the file as UTF-8") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror})") from None


def _csv(path: Path) -> Iterator[_Row]:
    text = io.StringIO(_text_of(path), newline="")
    rows = csv.DictReader(text, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    try:
        columns = list(rows.fieldnames or ())
        if len(set(columns)) < len(columns):
            raise CorpusError(f"{path}, line 1: two columns have the same name ({', '.join(columns)}); rename one")
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if None in row or None in row.values():
                raise CorpusError(
                    f"{where}: not as many fields as columns ({', '.join(columns)}); put a field that contains a "
                    f"{'tab' if path.suffix == '.tsv' else 'comma'} in quotation marks"
                )
            if any("\n" in value for value in row.values()):
                raise CorpusError(f"{where}: a quotation mark joins lines; close it, and write text in one line")
            yield where, row
    except csv.Error as error:
        raise CorpusError(f"{path}, line {rows.line_num + 1}: not a row of a table ({error})") from None


def _json(path: Path) -> Iterator[_Row]:
    if path.suffix == ".jsonl":
        lines = enumerate(_text_of(path).split("\n"), 1)
        values = [_parsed(f"{path}, line {number}", line) for number, line in lines if line.strip()]
    else:
        where, items = _parsed(str(path), _text_of(path))
        if not isinstance(items, list):
            raise CorpusError(f"{where}: not a list of objects; for an object in each line, name the file .jsonl")
        values = [(f"{where}, item {number}", item) for number, item in enumerate(items, 1)]
    for where, row in values:
        if not isinstance(row, dict):
            raise CorpusError(f"{where}: not an object; write one for each utterance, with the text in a key")
        yield where, row


def _parsed(where: str, text: str) -> tuple[str, Any]:
    try:
        return where, json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{where}: it is not valid JSON ({error})") from None


def _columns(rows: Iterator[_Row], text: str, label: str | None, tags: str | None) -> Iterator[_Utterance]:
    for number, (where, row) in enumerate(rows):
        if number == 0:
            tags = "tags" if tags is None and "tags" in row else tags
            label = next((name for name in ("label", "intent") if name in row), None) if label is None else label
            if label is None and tags is None:
                raise CorpusError(
                    f"{where}: neither a label nor tags; there are {', '.join(row)}; name a column with --label or "
                    "--tags"
                )
        for option, name in (("--text", text), ("--label", label), ("--tags", tags)):
            if name is not None and row.get(name) is None:
                raise CorpusError(f"{where}: no {name!r}; there are {', '.join(row)}; name the column with {option}")
        words = _parts(where, row[text])
        if tags is None:
            words = [plain for word in words if (plain := word.strip(PUNCTUATION))]
        yield where, words, None if tags is None else _parts(where, row[tags]), row[label] if label else NO_INTENT


def _parts(where: str, value: Any) -> list[str]:
    parts = value.split() if isinstance(value, str) else value
    if not isinstance(parts, list) or any(not isinstance(part, str) or part.split() != [part] for part in parts):
        raise CorpusError(f"{where}: {str(value)[:40]!r} is not text, or a list of words or tags without spaces")
    return parts


def _intent(where: str, value: Any) -> str:
    """Return an intent; several are joined by "#", as in ATIS."""
    names = value if isinstance(value, list) else [value]
    text = "#".join(map(str, names))
    is_name = all(isinstance(name, str | int) and not isinstance(name, bool) for name in names) and text.strip()
    if not is_name or text.lower() in ("nan", "<na>") or text.startswith(("[", "{")):
        raise CorpusError(f"{where}: the label is {text[:40]!r}; give a name, an integer, or in JSON a list of names")
    if text in (UNK, PAD):
        raise CorpusError(f"{where}: the label {text} is reserved; give it another name, or leave it out")
    return "_".join(text.split())


def _to_bio(where: str, tags: list[str]) -> list[str]:
    """Return tags of IOB1, IOB2, BIOES or BILOU in BIO; a tag that continues nothing begins a chunk."""
    found, open_name = [], ""
    for tag in tags:
        match = _TAG.fullmatch(tag)
        if match is None:
            raise CorpusError(f"{where}: tag {tag!r} is of no known scheme; write O, B-… or I-…")
        letter, name = match[1] or OUTSIDE, match[2] or ""
        goes_on = letter in "IEL" and name == open_name
        found.append(OUTSIDE if letter == OUTSIDE else f"{'I' if goes_on else 'B'}-{name}")
        open_name = name if letter in "BI" else ""
    return found


def _conll(path: Path) -> Iterator[_Utterance]:
    text = _text_of(path)
    separator = "\t" if "\t" in text else None
    blocks: list[tuple[str, str, list[list[str]]]] = []  # place, intent, and the columns of each line
    intent, begins, count = NO_INTENT, True, 0
    for number, line in enumerate(text.split("\n"), 1):
        where, columns = f"{path}, line {number}", line.strip().split(separator)
        if not line.strip():
            if not begins:
                intent, begins = NO_INTENT, True
        elif begins and (line.startswith("-DOCSTART-") or (line.startswith("#") and not _TAG.fullmatch(columns[-1]))):
            if (match := _INTENT.fullmatch(line.strip())) and match[1]:
                intent = match[1]
        elif len(columns) < 2 or len(columns) != (count or len(columns)):
            raise CorpusError(
                f"{where}: {len(columns)} columns; write a word and its tag, as many columns in each line"
            )
        elif any(value.split() != [value] for value in columns):
            raise CorpusError(f"{where}: a column is empty or has a space in it; write one word in each line")
        else:
            if begins:
                blocks.append((where, intent, []))
            blocks[-1][2].append(columns)
            count, begins = len(columns), False
    firsts = [[columns[0] for columns in lines] for _, _, lines in blocks]
    is_number = all(first.isdigit() for block in firsts for first in block)
    if count > 2 and (is_number or all(len(block) > 1 == len(set(block)) for block in firsts)):
        raise CorpusError(f"{path}: the first column has no words; remove columns of ids")
    for where, intent, lines in blocks:
        yield where, [columns[0] for columns in lines], [columns[-1] for columns in lines], intent
