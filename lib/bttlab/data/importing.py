"""Import utterances from CSV, JSON, CoNLL or a folder of texts into a corpus in the common layout.

docs/import.md has the table of what is accepted.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bttlab.util.reading import parse_json, read_text

from .annotations import is_spans, label_studio_row, read_spans, span_tags
from .corpus import OUTSIDE, PAD, PUNCTUATION, SPLIT_NAMES, UNK, CorpusError, Split, files_of
from .tag_schemes import to_bio

PART = 0.1  # share of the utterances in dev, and in test, if they have no file of their own
NO_INTENT = "none"  # of utterances that have only tags
_INTENT = re.compile(r"#\s*(?:intent|label)\s*[:=](.*)")
_TAG = re.compile(r"[oO0]|[BIESLUMW][-_].+|.+[-_][BIESLUMW]", re.IGNORECASE)
_INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\xad\u200b\u2060\ufeff]")  # joiners are letters' in some scripts
_ID = re.compile(r"\d+([-.]\d+)?")


@dataclass(frozen=True)
class _Utterance:
    where: str  # its place in the file, for messages
    words: list[str]
    tags: list[str] | None
    intent: str


Row = tuple[str, dict[str, Any]]  # its place in the file, and its values by column


def read_utterances(path: Path, text: str, label: str | None, tags: str | None) -> Split:
    """Read utterances from a file or folder, in the format of its suffix.

    .csv and .tsv have the columns' names in the first line, .jsonl an object in each line, .json a list of objects;
    .conll, .bio and .iob a word in each line with its tag in the last column, the intent as "# intent: NAME", and a
    blank line after each utterance. A folder has a subfolder for each label, with a .txt file for each utterance.

    `text`, `label` and `tags` are columns with the words, the intent, and the tags: one for each word, separated by
    spaces or as a list, or spans of characters as doccano and Label Studio write them. A column with spans given as
    `label` gives tags, too. By default these are "label", "intent" or "cats", and "tags", or spans in "entities",
    "spans" or "label", if there are such columns.

    The words are in lower case, split at spaces; without punctuation at their ends, unless each word has a tag of its
    own. The tags are in BIO, O if there are none. Raises CorpusError, whose message names the place, the rule and a
    remedy.
    """
    if path.is_dir():
        found = list(_folder(path))
    elif path.suffix in _TABLES:
        found = _utterances(list(_TABLES[path.suffix](path)), text, label, tags)
    elif path.suffix in (".conll", ".bio", ".iob"):
        found = list(_conll(path))
    else:
        raise CorpusError(
            f"{path}: its suffix is unknown; use .csv, .tsv, .jsonl, .json, .conll, .bio, .iob, or a folder with a "
            "subfolder of .txt files for each label"
        )
    if not found:
        raise CorpusError(f"{path} has no utterances")
    tagged = iter(to_bio([(item.where, item.tags) for item in found if item.tags is not None]))
    split = Split()
    for item in found:
        intent = "_".join(item.intent.split())
        if intent in (UNK, PAD):
            raise CorpusError(f"{item.where}: the label {intent} is reserved; give it another name, or leave it out")
        for part in (intent, *item.words):
            if hidden := _INVISIBLE.search(part):
                raise CorpusError(f"{item.where}: {part!r} has the invisible character {hidden[0]!r}; remove it")
        split.words.append([word.lower() for word in item.words])
        split.slots.append([OUTSIDE] * len(item.words) if item.tags is None else next(tagged))
        split.intents.append(intent)
    return split


def divided(everything: Split, given: Mapping[str, Split], seed: int) -> dict[str, Split]:
    """Return train, dev and test; dev and test, if not given, are a tenth of the utterances each, chosen at random."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(everything)).tolist()
    count = max(1, round(PART * len(everything)))
    splits = dict(given)
    for name in SPLIT_NAMES[1:]:
        if name not in given:
            splits[name], order = everything[sorted(order[:count])], order[count:]
    if not order:
        raise CorpusError(f"{len(everything)} utterances are too few for train, dev and test; give at least 3")
    return {"train": everything[sorted(order)]} | splits


def corpus_files(splits: Mapping[str, Split]) -> dict[str, bytes]:
    """Return the files of a corpus with these splits, for `store_corpus`. The label lists have all labels in use."""
    intents = sorted({intent for split in splits.values() for intent in split.intents})
    tags = {tag for split in splits.values() for slots in split.slots for tag in slots} - {OUTSIDE}
    tags |= {f"B-{tag[2:]}" for tag in tags}
    return files_of([UNK, *intents], [PAD, UNK, OUTSIDE, *sorted(tags)], splits)


def _csv(path: Path) -> Iterator[Row]:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    lines = list(io.StringIO(read_text(path, CorpusError), newline=""))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    columns: list[str] = []
    first = 1  # line of the row
    try:
        for row in reader:
            where, begin, first = f"{path}, line {first}", first, reader.line_num + 1
            if not row:
                continue
            if not columns:
                columns = row
                if twice := sorted({name for name in columns if name and columns.count(name) > 1}):
                    raise CorpusError(f"{where}: two columns are named {twice[0]!r}; rename one")
                if len(row) == 1 and (separator := next((c for c in ";\t|," if c in row[0]), None)):
                    right = "tabs" if delimiter == "\t" else "commas"
                    raise CorpusError(f"{where}: {separator!r} separates the columns; save the table with {right}")
                continue
            if len(row) != len(columns):
                raise CorpusError(
                    f"{where}: {len(row)} fields, but {len(columns)} columns ({', '.join(columns)}); put a field that "
                    f"contains {'a tab' if delimiter == chr(9) else 'a comma'} in quotation marks"
                )
            rows = lines[begin - 1 : reader.line_num]
            if len(rows) > 1 and all(line.count(delimiter) == len(columns) - 1 for line in rows):
                raise CorpusError(
                    f"{where}: a quotation mark joins lines {begin} to {reader.line_num}, each of which looks like a "
                    'row; write "" for a quotation mark, and the text in one line'
                )
            yield where, dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise CorpusError(f"{path}, line {first}: not a row of a table ({error})") from None


def _parse(where: str, text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(row := dict(pairs)) != len(pairs):
            raise ValueError("a key occurs twice")
        return row

    try:
        return parse_json(text, unique)
    except ValueError as error:
        way_out = "; for an object in each line, name the file .jsonl" if "Extra data: line 2" in str(error) else ""
        raise CorpusError(f"{where}: it is not valid JSON ({error}){way_out}") from None


def _json(path: Path) -> Iterator[Row]:
    text, is_list = read_text(path, CorpusError), path.suffix == ".json"
    values = _parse(str(path), text) if is_list else text.split("\n")
    if not isinstance(values, list):
        raise CorpusError(f"{path}: not a list of objects; for an object in each line, name the file .jsonl")
    for number, value in enumerate(values, 1):
        where = f"{path}, {'item' if is_list else 'line'} {number}"
        if not is_list and not value.strip():
            continue
        row = value if is_list else _parse(where, value)
        if not isinstance(row, dict):
            raise CorpusError(f"{where}: not an object; write one for each utterance, with the text in a key")
        yield where, label_studio_row(where, row)


_TABLES: dict[str, Callable[[Path], Iterator[Row]]] = {".csv": _csv, ".tsv": _csv, ".jsonl": _json, ".json": _json}


def _utterances(rows: list[Row], text: str, label: str | None, tags: str | None) -> list[_Utterance]:
    there = [*dict.fromkeys(name for _, values in rows for name in values)]
    with_spans = [name for name in there if any(is_spans(values.get(name)) for _, values in rows)]
    if tags is None:
        usual = [
            name for name in there if name == "tags" or (name in ("entities", "spans", "label") and name in with_spans)
        ]
        tags = label if label in with_spans else next((name for name in usual if name != label), None)
    if label is None or label == tags:
        label = next((name for name in ("label", "intent", "cats") if name in there and name != tags), None)
    spans = next((name for name in (tags, label) if name in with_spans), None)
    for where, values in rows:
        for option, name in (("--text", text), ("--label", label), ("--tags", tags)):
            if name is not None and name != spans and values.get(name) is None:
                columns = ", ".join(map(str, values))
                raise CorpusError(f"{where}: no {name!r}; there are {columns}; name the column with {option}")
    found = [_utterance(*row, text, label, None if spans == tags else tags, spans) for row in rows]
    if found and label is None and tags is None:
        columns = ", ".join(there)
        raise CorpusError(
            f"{found[0].where}: neither a label nor tags; there are {columns}; name a column with --label or --tags"
        )
    return found


def _utterance(
    where: str, values: dict[str, Any], text: str, label: str | None, tags: str | None, spans: str | None
) -> _Utterance:
    value = values[text]
    if values.get("answer") in ("reject", "ignore"):  # Prodigy
        raise CorpusError(f"{where}: the annotator's answer is {values['answer']}; remove the line")
    intent = NO_INTENT if label is None else _intent(where, values[label])
    if spans is not None:
        if not isinstance(value, str):
            raise CorpusError(f"{where}: {text!r} is not text, which the spans in {spans!r} count the characters of")
        words, word_tags = span_tags(where, value, read_spans(where, values.get(spans) or []))
    elif tags is not None:
        words, word_tags = _parts(where, value), _parts(where, values[tags])
        if len(word_tags) != len(words):
            raise CorpusError(f"{where}: {len(words)} words, but {len(word_tags)} tags; every word has one tag")
    else:
        words, word_tags = _plain(_parts(where, value)), None
    if not words:
        raise CorpusError(f"{where}: no words in {text!r}; remove the line")
    return _Utterance(where, words, word_tags, intent)


def _intent(where: str, value: Any) -> str:
    """Return an intent; several are joined by "#", as in ATIS."""
    if isinstance(value, dict) and list(value) == ["choices"]:  # Label Studio
        value = value["choices"]
    names = value if isinstance(value, list) else [value]
    for name in names:
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise CorpusError(f"{where}: the label is {str(value)[:40]!r}; it must be a name, or a list of names")
    intent = "#".join(map(str, names))
    if intent.startswith(("[", "{")):
        raise CorpusError(f"{where}: the label {intent[:40]!r} is a list or an object as text; save the file as JSON")
    if not intent.strip():
        raise CorpusError(f"{where}: the label is empty; name the utterance's intent, or leave the line out")
    if intent.lower() in ("nan", "<na>"):
        raise CorpusError(f"{where}: the label {intent} is a missing value; name the utterance's intent")
    return intent


def _parts(where: str, value: Any) -> list[str]:
    if not isinstance(value, str | list):
        raise CorpusError(f"{where}: {str(value)[:40]!r} is neither text nor a list of words or tags")
    parts = value.split() if isinstance(value, str) else value
    for part in parts:
        if not isinstance(part, str) or part.split() != [part]:
            raise CorpusError(f"{where}: {part!r} is not a word or tag, which has at least one character and no spaces")
    return parts


Block = tuple[str, list[tuple[str, list[str]]]]  # an utterance: its intent; of each word its place, and its columns


def _conll(path: Path) -> Iterator[_Utterance]:
    blocks = list(_blocks(path))
    count = len(blocks[0][1][0][1]) if blocks else 0
    word = 0  # the column of the words: the first that has no ids
    while word + 2 < count and _is_id([[(where, columns[word]) for where, columns in lines] for _, lines in blocks]):
        word += 1
    for intent, lines in blocks:
        for where, columns in lines:
            for value in (columns[word], columns[-1]):
                if value.split() != [value]:
                    raise CorpusError(f"{where}: {value!r} is not one word or tag; write a word in each line")
        words, tags = ([columns[place] for _, columns in lines] for place in (word, -1))
        yield _Utterance(lines[0][0], words, tags, intent)


def _blocks(path: Path) -> Iterator[Block]:
    """Yield the utterances of a CoNLL file; every line has the same number of columns."""
    text = [line.rstrip("\r") for line in read_text(path, CorpusError).split("\n")]
    plain = [line for line in text if line.strip() and not line.startswith(("#", "-DOCSTART-"))]
    separator = "\t" if any("\t" in line for line in plain) else "[ \t]+"
    lines = [[column.strip(" ") for column in re.split(separator, line.strip(" "))] for line in text]
    count = len(re.split(separator, plain[0].strip(" "))) if plain else 0
    tags = {re.split(separator, line.strip(" "))[-1] for line in plain}
    intent, block = NO_INTENT, []
    for number, (line, columns) in enumerate(zip([*text, ""], [*lines, []], strict=True), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            if block:
                yield intent, block
                intent, block = NO_INTENT, []
        elif not block and (match := _INTENT.fullmatch(line)):
            intent = match[1].strip() or NO_INTENT
        elif not block and (line.startswith("-DOCSTART-") or _is_comment(where, columns, count, tags)):
            continue
        elif len(columns) < 2:
            raise CorpusError(f"{where}: {columns[0]!r} has no tag; write it after the word")
        elif len(columns) != count:
            raise CorpusError(f"{where}: {len(columns)} columns, but the first word has {count}; make them equal")
        else:
            block.append((where, columns))


def _is_comment(where: str, columns: list[str], count: int, tags: set[str]) -> bool:
    """Return True if a line before an utterance is a comment; a word may begin with #, or be #."""
    if not columns[0].startswith("#") or (len(columns) == count and columns[-1] in tags):
        return False
    if len(columns) == count and columns[0] != "#":
        if _TAG.fullmatch(columns[-1]):
            return False
        raise CorpusError(f"{where}: neither a comment nor a word with a tag that other words have; write '# ' first")
    return True


def _is_id(blocks: list[list[tuple[str, str]]]) -> bool:
    """Return True if a column has ids: numbers throughout, or one value in each utterance."""
    values = [pair for block in blocks for pair in block]
    if all(_ID.fullmatch(value) for _, value in values):
        for where, value in values:
            if not value.isdigit():
                raise CorpusError(f"{where}: {value} is the id of a token of several words; remove the line")
        return True
    constant = all(len({value for _, value in block}) == 1 for block in blocks)
    return len(blocks) > 1 and len(values) > len(blocks) and constant


def _folder(folder: Path) -> Iterator[_Utterance]:
    for path in sorted(folder.glob("*/*.txt")):
        if words := _plain(read_text(path, CorpusError).split()):
            yield _Utterance(str(path), words, None, path.parent.name)


def _plain(words: list[str]) -> list[str]:
    return [plain for word in words if (plain := word.strip(PUNCTUATION))]
