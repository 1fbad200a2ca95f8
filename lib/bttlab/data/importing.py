"""Import utterances into a corpus in the common layout: match a file with the declared readers, and account for it.

docs/import.md has the table of what is accepted.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bttlab.util.reading import read_text

from .corpus import OUTSIDE, PAD, SPLIT_NAMES, UNK, CorpusError, Split, files_of
from .readers.account import Account, Choices, Row
from .readers.columns import column_rows, grouped_tokens, webanno_rows
from .readers.files import json_lines, parquet_rows, parse_json, table_rows
from .readers.formats import ANNOTATION, LABEL, MARKUP, READERS, SPANS, TAGS, TEXT, Reader
from .readers.spans import (
    EMPTY,
    CharacterSpan,
    chosen_offsets,
    one_label,
    read_span,
    tags_of,
    without_overlaps,
)
from .readers.tools import brat_rows, docbin_rows, markup_of, rasa_rows
from .spans import slots_of
from .tag_schemes import to_bio
from .tokenizer import Piece, Tokenizer, unspaced

PART = 0.1  # share of the utterances in dev, and in test, if they have no file of their own
NO_INTENT = "none"  # of utterances that have only tags
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u200b\u2060\ufeff\ud800-\udfff]"
)  # joiners are letters' in some scripts
_TAG_LIKE = re.compile(r"[oO]|[BIESLUMW][-_]\S+")


@dataclass(frozen=True)
class _Utterance:
    where: str  # its place in the file, for messages
    column: str  # of its text
    intent: str
    text: str | None  # None where the words are given
    words: list[str]
    tags: list[str] | None
    spans: list[CharacterSpan] | None


def read_utterances(path: Path, choices: Choices | None = None) -> tuple[Split, Account]:
    """Read utterances from a file or folder, and account for all that it has.

    The suffix says how a file is written, and its keys which format of `bttlab.data.readers` it is. The words are those
    of the tokenizer, by default in lower case, split at spaces; without punctuation at their ends, unless each word has
    a tag of its own. The tags are in BIO, O if there are none.

    Raises CorpusError, whose message names the place, the rule and a remedy.
    """
    choices = choices or Choices()
    account = Account(str(path))
    found, choices = _found(path, choices, account)
    if not found:
        raise CorpusError(f"{path} has no utterances")
    _check_words(found)
    return _split_of(found, choices, account), account


def _found(path: Path, choices: Choices, account: Account) -> tuple[list[_Utterance], Choices]:
    suffix = path.suffix.lower()
    if path.is_dir():
        reader, rows = ("brat", brat_rows(path, account)) if any(path.glob("*.ann")) else ("texts", _folder(path))
        account.reader = {"brat": "brat standoff", "texts": "a folder with a text for each utterance"}[reader]
        return _utterances(rows, _PREPARED, choices, account, {}), choices
    if suffix not in SUFFIXES:
        raise CorpusError(
            f"{path}: its suffix is unknown; use {', '.join(SUFFIXES)}, or a folder with a subfolder of .txt files for "
            "each label"
        )
    return SUFFIXES[suffix](path, choices, account)


def _table(path: Path, choices: Choices, account: Account):
    if read_text(path, CorpusError)[:15].startswith("#FORMAT=WebAnno"):
        return _columns(path, choices, account)
    rows = list(table_rows(path, account))
    if rows and (grouped := grouped_tokens(rows, account)):
        return _utterances(grouped, _PREPARED, choices, account, {}), choices
    account.reader = f"a table ({path.suffix.lower()})"
    reader, rows = _matched([(row.where, row.values) for row in rows], "", account)
    return _utterances(rows, reader, choices, account, {}), choices


def _json(path: Path, choices: Choices, account: Account):
    if path.suffix.lower() == ".jsonl":
        values, top, at = list(json_lines(path, account)), {}, ""
    else:
        value = parse_json(str(path), read_text(path, CorpusError))
        values, top, at = _rows_in(path, value, account)
        values = [(f"{path}, item {number}", item) for number, item in enumerate(values, 1)]
    if top.get("stringIndexType") == "Utf16CodeUnit" and choices.offsets is None:  # CLU says how it counts
        choices = replace(choices, offsets="utf-16")
    if all(isinstance(item, list) and len(item) == 2 and isinstance(item[1], dict) for _, item in values) and values:
        values = [(where, {"text": text, "annotations": about, "is pair": True}) for where, (text, about) in values]
    for where, item in values:
        if not isinstance(item, dict):
            raise CorpusError(f"{where}: not an object; write one for each utterance, with the text in a key")
    reader, rows = _matched(values, at, account)
    features = top.get("features")
    if isinstance(features, list):  # of the dataset server
        features = {feature.get("name"): feature.get("type") for feature in features if isinstance(feature, dict)}
    return _utterances(rows, reader, choices, account, _class_names(features or {})), choices


def _parquet(path: Path, choices: Choices, account: Account):
    values, features = parquet_rows(path)
    reader, rows = _matched([(f"{path}, row {n}", value) for n, value in enumerate(values, 1)], "", account)
    account.reader = f"parquet of {reader.title}"
    return _utterances(rows, reader, choices, account, _class_names(features)), choices


def _columns(path: Path, choices: Choices, account: Account):
    text = read_text(path, CorpusError)
    rows = (
        webanno_rows(path, choices, account)
        if text.startswith("#FORMAT=WebAnno")
        else column_rows(path, choices, account)
    )
    used = replace(choices, text=None, label=None, tags=None, ignore=frozenset())  # they were numbers or layers
    return _utterances(rows, _PREPARED, used, account, {}), choices


def _rasa(path: Path, choices: Choices, account: Account):
    account.reader = "Rasa YAML"
    return _utterances(rasa_rows(path, account), _PREPARED, choices, account, {}), choices


def _docbin(path: Path, choices: Choices, account: Account):
    account.reader = "spaCy's DocBin"
    return _utterances(docbin_rows(path, account), _PREPARED, choices, account, {}), choices


SUFFIXES: dict[str, Callable[[Path, Choices, Account], tuple[list[_Utterance], Choices]]] = {
    **dict.fromkeys((".csv", ".tsv"), _table),
    **dict.fromkeys((".jsonl", ".json"), _json),
    **dict.fromkeys((".conll", ".bio", ".iob", ".conllu", ".conllup"), _columns),
    **dict.fromkeys((".yml", ".yaml"), _rasa),
    ".parquet": _parquet,
    ".spacy": _docbin,
}
# What the readers of other files give: words with tags, or text with spans, and an intent.
_PREPARED = Reader(
    "prepared",
    columns={"text": TEXT, "words": TEXT, "label": LABEL, "cats": LABEL, "tags": TAGS, "spans": SPANS},
    optional=("*",),
)


def _rows_in(path: Path, value: Any, account: Account) -> tuple[list[Any], dict[str, Any], str]:
    """Return the list of rows in a file of JSON, its other values by key, and where the list is."""
    if isinstance(value, list):
        return value, {}, ""
    if isinstance(value, dict):
        for reader in READERS:
            place: Any = value
            others: dict[str, Any] = {}
            for key in reader.at.split(".") if reader.at else ():
                others |= {name: item for name, item in place.items() if name != key} if isinstance(place, dict) else {}
                place = place.get(key) if isinstance(place, dict) else None
            if not reader.at or not isinstance(place, list):
                continue
            for name, item in others.items():
                if name in reader.beside:
                    account.unused[name] = reader.beside[name]
                elif item not in EMPTY and not isinstance(item, str | int | float):
                    raise CorpusError(f"{path}: almost {reader.title}; left over: {name}; remove it")
                else:
                    account.unused[name] = "not a list of utterances"
            return place, others, reader.at
    known = ", ".join(reader.at for reader in READERS if reader.at)
    raise CorpusError(
        f"{path}: not a list of objects, and no list at {known}; for an object in each line, name the file .jsonl"
    )


def _matched(values: list[tuple[str, dict[str, Any]]], at: str, account: Account) -> tuple[Reader, list[Row]]:
    """Return the one reader whose keys the rows have, and the rows as it converts them."""
    if not values:
        return READERS[0], []
    fitting: dict[str, Reader] = {}
    for reader in READERS:
        if reader.at == at and all(set(reader.needs) <= set(value) for _, value in values):
            fitting.setdefault(reader.title, reader)
        elif reader.at == at and reader.needs and any(set(reader.needs) <= set(value) for _, value in values):
            where = next(where for where, value in values if not set(reader.needs) <= set(value))
            needs = " and ".join(map(repr, reader.needs))
            raise CorpusError(f"{where}: it lacks {needs}, which other rows have, as {reader.title} does")
    special = [reader for reader in fitting.values() if reader.needs or reader.at]
    if len(special) > 1:
        titles = " and as ".join(reader.title for reader in special)
        raise CorpusError(f"{account.file}: it may be read as {titles}; leave out the keys of one")
    reader = special[0] if special else READERS[0]
    account.reader = account.reader or reader.title
    if reader.convert is None:
        return reader, [Row(where, value) for where, value in values]
    rows = [Row(*row) for where, value in values for row in reader.convert(where, value, account)]
    return reader, rows


def _class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of labels that `datasets` of Hugging Face stores as integers, by column."""
    found = {}
    for name, kind in features.items():
        while isinstance(kind, dict) and "names" not in kind and isinstance(kind.get("feature"), dict):
            kind = kind["feature"]
        if isinstance(kind, list) and len(kind) == 1:
            (kind,) = kind
        if isinstance(kind, dict) and isinstance(kind.get("names"), list):
            found[name] = list(map(str, kind["names"]))
    return found


# --- which column has what


@dataclass(frozen=True)
class _Columns:
    text: str
    label: str | None
    annotation: str | None
    kind: str  # of the annotation: TAGS, SPANS or MARKUP; "" without one


def _kind(values: list[Any]) -> str:
    """Return what a column's values are: "spans" (lists of objects or lists), "list", "object", "text" or "plain"."""
    if any(
        isinstance(value, list) and any(isinstance(part, dict | list | CharacterSpan) for part in value)
        for value in values
    ):
        return "spans"
    if any(isinstance(value, list) for value in values):
        return "list"
    if any(isinstance(value, dict) for value in values):
        return "object"
    return "text" if any(isinstance(value, str) for value in values) else "plain"


def _is_annotated(values: list[Any], texts: list[Any]) -> bool:
    """Return True if values of a column may be labels of words: no text without a meaning to pass over."""
    if _kind(values) != "text":
        return _kind(values) != "plain"
    pairs = [(value, text) for value, text in zip(values, texts, strict=True) if isinstance(value, str) and value]
    written = any(value.lstrip().startswith(("[{", "[[", "[(", "{", "['", '["')) for value, _ in pairs)
    tags = all(map(_TAG_LIKE.fullmatch, " ".join(value for value, _ in pairs).split()))
    return written or (tags and bool(pairs))


def _chosen_columns(rows: list[Row], reader: Reader, choices: Choices, account: Account) -> _Columns:
    names = [*dict.fromkeys(name for row in rows for name in row.values)]
    first, listed = rows[0].where, ", ".join(map(str, names))
    values = {name: [row.values.get(name) for row in rows] for name in names}
    filled = [name for name in names if any(value not in EMPTY for value in values[name])]
    ignored = {name for name in names if name in choices.ignore}
    if wrong := sorted(name for name in choices.ignore if name not in names and name.partition(".")[0] not in names):
        raise CorpusError(f"{first}: no column {wrong[0]!r} to ignore; there are {listed}")
    account.unused |= dict.fromkeys(sorted(ignored), "--ignore")
    left = [name for name in names if name not in ignored]
    text = choices.text or next((n for n in filled if n in left and reader.columns.get(n) in (TEXT, MARKUP)), "text")
    for option, name in (("--text", text), ("--label", choices.label), ("--tags", choices.tags)):
        if name is not None and name not in names:
            raise CorpusError(f"{first}: no {name!r}; there are {listed}; name the column with {option}")
    texts = values[text]
    labels, annotations = [], []
    for name in left:
        meaning = reader.columns.get(name)
        kind = _kind(values[name])
        chosen = name in (choices.label, choices.tags)
        if name == text:
            if meaning == MARKUP:
                annotations.append(name)
        elif name == choices.label and kind != "spans":
            labels.append(name)
        elif chosen:
            annotations.append(name)
        elif name in reader.unused or (meaning is not None and meaning.startswith("compared")):
            account.unused[name] = reader.unused.get(name, meaning or "")
        elif name not in filled:
            account.unused[name] = "empty"
        elif meaning == TEXT:
            raise CorpusError(
                f"{first}: the words are in {text!r} or in {name!r}; choose with --text, and --ignore the other"
            )
        elif meaning == LABEL:
            labels.append(name)
        elif meaning in (SPANS, TAGS):
            annotations.append(name)
        elif meaning == ANNOTATION or (kind in ("spans", "list") and "*" in reader.optional):
            is_intent = kind in ("text", "plain", "object") and name in ("label", "labels")
            if kind == "list" and name not in ("tags", "ner_tags", "slots", "entities", "spans", "annotations"):
                is_intent = not all(_fits(value, text) for value, text in zip(values[name], texts, strict=True))
            (labels if is_intent else annotations).append(name)
        elif not reader.is_open:
            raise CorpusError(f"{first}: almost {reader.title}; left over: {name!r}; leave it out with --ignore {name}")
        elif _is_annotated(values[name], texts):
            raise CorpusError(
                f"{first}: the column {name!r} may have labels, and is not read; name it with --tags or --label, or "
                f"leave it out with --ignore {name}"
            )
        else:
            account.unused[name] = "no meaning is known: --label names an intent"
    if choices.label in labels:
        account.unused |= dict.fromkeys(
            (name for name in labels if name != choices.label), f"--label is {choices.label}"
        )
        labels = [choices.label]
    if choices.tags in annotations and len(annotations) > 1:
        other = next(name for name in annotations if name != choices.tags)
        raise CorpusError(
            f"{first}: {other!r} has labels, too, beside {choices.tags!r}; leave it out with --ignore {other}"
        )
    for option, several in (("--label", labels), ("--tags", annotations)):
        if len(several) > 1:
            both = " and ".join(map(repr, several))
            raise CorpusError(
                f"{first}: {both} both have labels; name one with {option}, and leave the other out with --ignore"
            )
    if not labels and not annotations:
        for row in rows:
            if not choices.splitter.pieces(" ".join(_parts(row.where, row.values.get(text)))):
                raise CorpusError(f"{row.where}: no words in {text!r}; remove the line")
        raise CorpusError(
            f"{first}: neither a label nor tags; there are {listed}; name a column with --label or --tags"
        )
    annotation = annotations[0] if annotations else None
    kind = "" if annotation is None else MARKUP if annotation == text else TAGS
    if (
        annotation is not None
        and kind == TAGS
        and (_kind(values[annotation]) == "spans" or reader.columns.get(annotation) == SPANS)
    ):
        kind = SPANS
    label = labels[0] if labels else None
    if reader is not _PREPARED:  # whose file has been accounted for
        account.used |= {text: TEXT} | ({label: LABEL} if label else {}) | ({annotation: kind} if annotation else {})
    return _Columns(text, label, annotation, kind)


def _fits(value: Any, text: Any) -> bool:
    """Return True if a list may have a tag for each word of a text."""
    words = text if isinstance(text, list) else str(text).split()
    return (
        isinstance(value, list)
        and len(value) == len(words)
        and (isinstance(text, list) or all(isinstance(tag, str) and _TAG_LIKE.fullmatch(tag) for tag in value))
    )


# --- utterances


def _utterances(
    rows: list[Row], reader: Reader, choices: Choices, account: Account, names: Mapping[str, list[str]]
) -> list[_Utterance]:
    if not rows:
        return []
    columns = _chosen_columns(rows, reader, choices, account)
    found = []
    for row in rows:
        where, values = row.where, row.values
        for name in (columns.text, columns.label, columns.annotation):
            is_optional = name == columns.annotation and (name in reader.optional or "*" in reader.optional)
            if name is not None and values.get(name) is None and not (is_optional and columns.kind == SPANS):
                there = ", ".join(map(str, values))
                way_out = "; write [] where there are none" if name == columns.annotation else ""
                raise CorpusError(f"{where}: no {name!r}, which other rows have; there are {there}{way_out}")
        intent = (
            NO_INTENT
            if columns.label is None
            else _intent(where, columns.label, values[columns.label], names.get(columns.label))
        )
        value, annotation = values[columns.text], values.get(columns.annotation or "")
        text, words, tags, spans = None, [], None, None
        if columns.kind in (SPANS, MARKUP):
            if not isinstance(value, str):
                raise CorpusError(f"{where}: {columns.text!r} is not text, which the spans count the characters of")
            text = value
            if columns.kind == MARKUP:
                text, spans = markup_of(where, value, values.get("utt"))
            else:
                spans = _spans(where, str(columns.annotation), annotation, choices, account)
        elif columns.kind == TAGS:
            words = _parts(where, value)
            tags = _parts(where, _named(where, annotation, names.get(str(columns.annotation))))
            if len(tags) != len(words):
                raise CorpusError(f"{where}: {len(words)} words, but {len(tags)} tags; every word has one tag")
        elif isinstance(value, str):
            text = value
        else:
            words = _parts(where, value)
        if text is None and not words:
            raise CorpusError(f"{where}: no words in {columns.text!r}; remove the line")
        if text is not None and choices.tokenizer is None and (letter := unspaced(text)):
            raise CorpusError(
                f"{where}: {letter!r} is of a script without spaces between words; choose a --tokenizer: characters, "
                "words, a tokenizer.json, or spaces if the words are separated"
            )
        found.append(_Utterance(where, columns.text, intent, text, words, tags, spans))
    return found


def _spans(where: str, column: str, values: Any, choices: Choices, account: Account) -> list[CharacterSpan]:
    if values in (None, []):
        return []
    if not isinstance(values, list):
        raise CorpusError(f"{where}: {str(values)[:40]!r} is not a list of spans, as other lines have")
    return [read_span(where, column, value, choices, account) for value in values]


def _named(where: str, values: Any, names: list[str] | None) -> Any:
    if names is None or not isinstance(values, list):
        return values
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(names):
            raise CorpusError(
                f"{where}: the label {value!r} is none of the {len(names)} names of the dataset's features"
            )
    return [names[value] for value in values]


def _intent(where: str, column: str, value: Any, class_names: list[str] | None = None) -> str:
    """Return an intent; several are joined by "#", as in ATIS."""
    if isinstance(value, dict) and list(value) == ["choices"]:  # Label Studio
        value = value["choices"]
    elif column == "cats" and isinstance(value, dict) and value:  # spaCy
        if wrong := [name for name, score in value.items() if score not in (0, 1)]:
            raise CorpusError(f"{where}: the category {wrong[0]!r} is {value[wrong[0]]}: it must be 0 or 1")
        value = [name for name, score in value.items() if score == 1]
    if class_names is not None and isinstance(value, int):
        (value,) = _named(where, [value], class_names)
    names = value if isinstance(value, list) else [value]
    for name in names:
        if isinstance(name, bool) or not isinstance(name, str if isinstance(value, list) else str | int):
            what = (
                "numbers, as of a vector"
                if isinstance(value, list) and isinstance(name, int | float)
                else str(value)[:40]
            )
            raise CorpusError(f"{where}: the label is {what!r}; it must be a name, or a list of names")
    if len(set(names)) < len(names):
        raise CorpusError(f"{where}: the label has a name twice ({', '.join(names)}); leave one")
    intent = "#".join(map(str, names))
    if intent.lstrip().startswith(("[", "{")):
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
        if isinstance(part, int) and not isinstance(part, bool):
            raise CorpusError(
                f"{where}: {part} is the number of a tag, whose name the file lacks; save the dataset as parquet, or "
                "with names"
            )
        if not isinstance(part, str) or part.split() != [part]:
            raise CorpusError(f"{where}: {part!r} is not a word or tag, which has at least one character and no spaces")
    return parts


def _check_words(found: list[_Utterance]) -> None:
    if len(found) > 1 and all(item.tags is not None and len(item.words) == 1 for item in found):
        raise CorpusError(
            f"{found[0].where}: every utterance has one word: a token in each row, or a sentence in a line; write an "
            "utterance in each row, or a .conll file with an empty line after each utterance"
        )


def _split_of(found: list[_Utterance], choices: Choices, account: Account) -> Split:
    """Return utterances in the words of the tokenizer, with BIO tags."""
    tokenizer = choices.splitter
    tagged = to_bio([(item.where, item.tags) for item in found if item.tags is not None])
    rows: list[tuple[str, str, list[CharacterSpan]]] = []
    left = iter(tagged)
    given: list[tuple[list[str], list[str]] | None] = []
    for item in found:
        bio = next(left) if item.tags is not None else None
        if item.text is None and tokenizer.is_default:
            given.append((item.words, bio or [OUTSIDE] * len(item.words)))
            rows.append((item.where, "", []))
        elif item.text is None:
            text, spans = joined_words(item.words, bio or [])
            given.append(None)
            rows.append((item.where, text, spans))
        else:
            given.append(None)
            rows.append((item.where, item.text, item.spans or []))
    by_item = chosen_offsets(rows, tokenizer, choices.offsets if any(item.spans for item in found) else None)
    split = Split()
    for item, (where, text, _), words_given, spans in zip(found, rows, given, by_item, strict=True):
        intent = "_".join(item.intent.split())
        if intent in (UNK, PAD):
            raise CorpusError(f"{where}: the label {intent} is reserved; give it another name, or leave it out")
        if words_given:
            words, tags = [word.lower() for word in words_given[0]], words_given[1]
            account.characters["in words"] += sum(map(len, words))
        else:
            pieces = tokenizer.pieces(text)
            if not pieces:
                raise CorpusError(f"{where}: no words in {item.column!r}; remove the line")
            spans = [one_label(where, span, choices.overlaps, account.left_out) for span in spans]
            spans = without_overlaps(where, spans, choices.overlaps, account.left_out)
            words, tags = [piece.form for piece in pieces], tags_of(where, text, pieces, spans)
            _count_characters(text, pieces, account.characters)
        for part in (intent, *words, *tags):
            if hidden := _INVISIBLE.search(part):
                raise CorpusError(f"{where}: {part!r} has the invisible character {hidden[0]!r}; remove it")
        split.words.append(words)
        split.slots.append(tags)
        split.intents.append(intent)
        account.labels[intent] += 1
        account.slots.update(slot for _, _, slot in slots_of(tags) if slot != OUTSIDE)
    account.utterances = len(split)
    intents: dict[tuple[str, ...], dict[str, None]] = {}
    for words, intent in zip(split.words, split.intents, strict=True):
        intents.setdefault(tuple(words), {})[intent] = None
    account.several = {" ".join(words): list(found) for words, found in intents.items() if len(found) > 1}
    return split


def joined_words(words: list[str], tags: list[str]) -> tuple[str, list[CharacterSpan]]:
    """Return words as a text, and the chunks of their BIO tags as spans of it."""
    starts, place = [], 0
    for word in words:
        starts.append(place)
        place += len(word) + 1
    spans = [
        CharacterSpan(starts[first], starts[end - 1] + len(words[end - 1]), (slot,))
        for first, end, slot in slots_of(tags)
        if slot != OUTSIDE
    ]
    return " ".join(words), spans


def _count_characters(text: str, pieces: list[Piece], counts: Counter) -> None:
    covered = {place for piece in pieces for place in range(piece.start, piece.end)}
    rest = "".join(character for place, character in enumerate(text) if place not in covered)
    counts["in words"] += len(covered)
    counts["spaces"] += (spaces := sum(map(str.isspace, rest)))
    counts["punctuation left out"] += len(rest) - spaces


def _folder(folder: Path) -> list[Row]:
    rows = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        if path.suffix != ".txt" or path.parent.parent != folder:
            raise CorpusError(f"{path}: not a .txt file in the folder of a label; move it out of {folder}")
        rows.append(Row(str(path), {"text": read_text(path, CorpusError), "label": path.parent.name}))
    return rows


# --- corpora


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


def corpus_files(splits: Mapping[str, Split], tokenizer: Tokenizer | None = None) -> dict[str, bytes]:
    """Return the files of a corpus with these splits, for `store_corpus`. The label lists have all labels in use."""
    intents = sorted({intent for split in splits.values() for intent in split.intents})
    tags = {tag for split in splits.values() for slots in split.slots for tag in slots} - {OUTSIDE, PAD}
    tags |= {f"B-{tag[2:]}" for tag in tags}
    return files_of([UNK, *intents], [PAD, UNK, OUTSIDE, *sorted(tags)], splits, tokenizer)
