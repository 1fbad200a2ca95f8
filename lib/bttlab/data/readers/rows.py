"""Which column of rows has what, and the utterances that rows are."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..corpus import CorpusError
from ..label_names import join_intents, split_intents
from ..tokenizer import unspaced
from .account import Account, Choices, Row
from .formats import ANNOTATION, LABEL, MARKUP, READERS, SPANS, TAGS, TEXT, USUAL, Reader
from .label_studio import NoPlace
from .spans import EMPTY, CharacterSpan, read_span
from .tools import markup_in, markup_of, other_markup_in

_NO_LABELS = {"id", "ids", "by", "at", "date", "time", "count", "source", "url"}  # last part of such names
_OFFSETS = re.compile(r"\d+:\d+:[^\s,;:]+(?:[,;]\s*\d+:\d+:[^\s,;:]+)*")  # 7:11:city,12:15:date
NO_INTENT = "none"  # of utterances that have only tags
_NAMES = {"slot", "entity", "entitie", "tag", "ner", "bio", "iob", "span", "annotation", "label", "intent"}  # of labels
_UNKNOWN = "no meaning is known: --label names an intent"
MOST_UNSPACED = 0.1  # share of utterances that may have words in a script without spaces
_SEPARATORS = re.compile("[\x1c-\x1f]")  # spaces for str.split, control characters for Unicode
TAG_LIKE = re.compile(r"[oO]|[BIESLUMW][-_]\S+")


@dataclass(frozen=True)
class Utterance:
    where: str  # its place in the file, for messages
    column: str  # of its text
    intent: str
    text: str | None  # None where the words are given
    words: list[str]
    tags: list[str] | None
    spans: list[CharacterSpan] | None


# What the readers of other files give: words with tags, or text with spans, and an intent.
PREPARED = Reader(
    "prepared",
    columns={"text": TEXT, "words": TEXT, "label": LABEL, "cats": LABEL, "tags": TAGS, "spans": SPANS},
    optional=("*",),
)


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


def _is_annotated(name: str, values: list[Any]) -> bool:
    """Return True if values of a column may be labels of words: no text without a meaning to pass over."""
    if _kind(values) != "text":
        return _kind(values) != "plain"
    filled = [value for value in values if isinstance(value, str) and value]
    if not filled or all(re.fullmatch(r"[-+.\d]+", value) for value in filled):
        return False
    parts = _name_parts(name)
    if parts and parts[-1] not in _NO_LABELS and any(part.rstrip("s") in _NAMES for part in parts):
        return True
    if any(value.lstrip().startswith(("[{", "[[", "[(", "{", "['", '["')) for value in filled):
        return True
    if any(markup_in(value) or other_markup_in(value) for value in filled) or all(map(_OFFSETS.fullmatch, filled)):
        return True
    return all(map(TAG_LIKE.fullmatch, " ".join(filled).split()))


def _name_parts(name: str) -> list[str]:
    return re.findall("[a-z]+", name.lower())


def _check_offsets(where: str, names: list[str], rows: list[Row]) -> None:
    """Refuse two columns that are not read and may be the offsets of a span in each row."""
    found = {}
    for end, parts in (("start", {"start", "begin"}), ("end", {"end", "stop"})):
        for name in names:
            values = [row.values.get(name) for row in rows]
            if parts & set(_name_parts(name)) and all(re.fullmatch(r"\d+", str(value)) for value in values):
                found.setdefault(end, name)
    if len(found) == 2:
        raise CorpusError(
            f"{where}: {found['start']!r} and {found['end']!r} may be the offsets of a span in each row, which is no "
            f"utterance; write a list of spans for each, or leave them out with --ignore {shlex.quote(found['start'])} "
            f"--ignore {shlex.quote(found['end'])}"
        )


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
            near = next((reader for reader in READERS if reader.needs and set(reader.needs[:1]) <= set(names)), None)
            lacking = sorted(set(near.needs) - set(names)) if near else []
            almost = f"; almost {near.title}: it lacks {', '.join(lacking)}" if near and lacking else ""
            raise CorpusError(f"{first}: no {name!r}; there are {listed}; name the column with {option}{almost}")
    texts = values[text]
    labels, annotations = [], []
    for name in left:
        meaning = reader.columns.get(name)
        kind = _kind(values[name])
        chosen = name in (choices.label, choices.tags)
        if refused := next((row for row in rows if isinstance(row.values.get(name), NoPlace)), None):
            why = refused.values[name]
            if why.is_label or chosen:
                raise CorpusError(
                    f"{refused.where}: {name!r} is {why.what}; "
                    + ("name another column" if chosen else f"leave it out with --ignore {name}")
                )
            account.unused[name] = why.what
        elif name == text:
            if meaning == MARKUP or name == choices.tags:
                annotations.append(name)
        elif name == choices.label and kind != "spans":
            labels.append(name)
        elif chosen:
            annotations.append(name)
        elif name in reader.unused or (meaning is not None and meaning.startswith("compared")):
            account.unused[name] = reader.unused.get(name, meaning or "")
        elif name not in filled:
            lacking = next((row.where for row in rows if name not in row.values), None)
            if lacking and meaning in (ANNOTATION, SPANS, TAGS) and not {name, "*"} & set(reader.optional):
                raise CorpusError(f"{lacking}: no {name!r}, which other rows have; write [] where there are none")
            if reader is not PREPARED:
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
            if kind == "list" and (name in ("label", "labels") or USUAL.get(name) != ANNOTATION):
                is_intent = not all(_fits(value, text) for value, text in zip(values[name], texts, strict=True))
            (labels if is_intent else annotations).append(name)
        elif not reader.is_open:
            raise CorpusError(f"{first}: almost {reader.title}; left over: {name!r}; leave it out with --ignore {name}")
        elif _is_annotated(str(name), values[name]):
            raise CorpusError(
                f"{first}: the column {name!r} may have labels, and is not read; name it with --tags or --label, or "
                f"leave it out with --ignore {name}"
            )
        else:
            account.unused[name] = _UNKNOWN
    _check_offsets(first, [name for name in left if account.unused.get(name) == _UNKNOWN], rows)
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
    if reader is not PREPARED:  # whose file has been accounted for
        account.used |= {text: TEXT} | ({label: LABEL} if label else {}) | ({annotation: kind} if annotation else {})
    return _Columns(text, label, annotation, kind)


def _fits(value: Any, text: Any) -> bool:
    """Return True if a list may have a tag for each word of a text."""
    words = text if isinstance(text, list) else str(text).split()
    return (
        isinstance(value, list)
        and len(value) == len(words)
        and (isinstance(text, list) or all(isinstance(tag, str) and TAG_LIKE.fullmatch(tag) for tag in value))
    )


# --- utterances


def utterances_of(
    rows: list[Row], reader: Reader, choices: Choices, account: Account, names: Mapping[str, list[str]]
) -> list[Utterance]:
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
        if isinstance(value, str) and (hidden := _SEPARATORS.search(value)):
            raise CorpusError(f"{where}: the invisible character {hidden[0]!r} in {columns.text!r}; remove it")
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
            if isinstance(annotation, dict) or (isinstance(annotation, str) and annotation.lstrip()[:1] in ("[", "{")):
                raise CorpusError(
                    f"{where}: {str(annotation)[:40]!r} in {columns.annotation!r} are no tags and no spans; write a "
                    f"list of [start, end, label] in JSON, or leave it out with --ignore {columns.annotation}"
                )
            tags = _parts(where, _named(where, annotation, names.get(str(columns.annotation))))
            if len(tags) != len(words):
                raise CorpusError(f"{where}: {len(words)} words, but {len(tags)} tags; every word has one tag")
        elif isinstance(value, str):
            text = value
            if mark := markup_in(text):
                raise CorpusError(
                    f"{where}: {mark!r} has a tag in brackets; --tags {columns.text} reads it, or take the brackets out"
                )
            if mark := other_markup_in(text):
                raise CorpusError(
                    f"{where}: {mark[:60]!r} is markup in the text; take it out, or write [words](entity) for "
                    f"--tags {columns.text}"
                )
        else:
            words = _parts(where, value)
        if text is None and not words:
            raise CorpusError(f"{where}: no words in {columns.text!r}; remove the line")
        found.append(Utterance(where, columns.text, intent, text, words, tags, spans))
    if choices.tokenizer is None:
        _check_spaces(found, account)
    return found


def _check_spaces(found: list[Utterance], account: Account) -> None:
    """Refuse texts in a script without spaces between words, unless few have some words in it: these are noted."""
    some = [(item, letter) for item in found if item.text and (letter := unspaced(item.text))]
    alone = [pair for pair in some if all(unspaced(c) for c in pair[0].text or "" if c.isalpha())]
    if alone or len(some) > MOST_UNSPACED * len(found):
        item, letter = (alone or some)[0]
        raise CorpusError(
            f"{item.where}: {letter!r} is of a script without spaces between words; choose a --tokenizer: characters, "
            "words, a tokenizer.json, or spaces if the words are separated"
        )
    account.unspaced += len(some)


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
    """Return an intent; several are joined by "#", as in ATIS. `unify_labels` gives them one order."""
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
        raise CorpusError(f"{where}: the label has a name twice ({', '.join(map(str, names))}); leave one")
    spelled = [" ".join(str(name).split()) for name in names]
    intent = join_intents(spelled) if isinstance(value, list) else str(value)
    if len(spelled) > 1 and split_intents(intent) != spelled:
        raise CorpusError(
            f"{where}: the intents {', '.join(spelled)} would be the label {intent}, which cannot be taken apart "
            "again; leave # out of the names, and no name empty"
        )
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
