"""Label Studio: what each control of its labelling interface says, declared, and its tasks as columns.

The controls and their results are those of Label Studio's documentation of tags (labelstud.io/tags).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..corpus import CorpusError
from .account import NO_RELATIONS, Account

SPANS, CHOICES, VALUE, NOTE, OTHER = "spans", "choices", "value", "note", "other"
_NO_LABEL = "it labels neither an utterance nor its words"


@dataclass(frozen=True)
class Control:
    """A control: the type of its results, and what an import takes of them."""

    tags: tuple[str, ...]  # of the labelling interface
    type: str  # of a result
    role: str
    what: str  # for messages and docs/import.md


@dataclass(frozen=True)
class NoPlace:
    """A column's value that a corpus has no place for."""

    what: str
    is_label: bool = True  # whether it may be left out only with --ignore


_INTENT = "the intent; several are joined by `#`, the levels of a nested one by `/`"
_REGIONS = "regions of an image"
_IMAGE = "Brush Bitmask Rectangle Polygon Ellipse KeyPoint Vector Cube".split()
CONTROLS = (
    Control(("Labels",), "labels", SPANS, "spans of characters"),
    Control(("HyperTextLabels",), "hypertextlabels", SPANS, "spans by `globalOffsets`; each has its text"),
    Control(("ParagraphLabels",), "paragraphlabels", SPANS, "spans; each paragraph of the dialogue is an utterance"),
    Control(("Choices",), "choices", CHOICES, _INTENT),
    Control(("Taxonomy",), "taxonomy", CHOICES, _INTENT),
    Control(("Rating",), "rating", VALUE, "a whole number; the intent with `--label`"),
    Control(("Number",), "number", VALUE, "a number; the intent with `--label`"),
    Control(("DateTime",), "datetime", VALUE, "a date; the intent with `--label`"),
    Control(("TextArea",), "textarea", NOTE, "text of the annotator, such as a transcription"),
    Control(("Relations", "Relation"), "relation", NOTE, "relations between spans"),
    Control(("Pairwise",), "pairwise", OTHER, "a comparison of two texts"),
    Control(("Ranker",), "ranker", OTHER, "an order of items"),
    Control(("List",), "list", OTHER, "an order of items"),
    Control(("TimeSeriesLabels",), "timeserieslabels", OTHER, "regions of a time series"),
    Control(("TimelineLabels",), "timelinelabels", OTHER, "regions of a video"),
    Control(("VideoRectangle",), "videorectangle", OTHER, "regions of a video"),
    Control(("VideoVectorLabels",), "videovectorlabels", OTHER, "regions of a video"),
    Control(("VideoVector",), "videovector", OTHER, "regions of a video"),
    Control(("Chat",), "chatmessage", OTHER, "messages of a conversation"),
    Control(("ReactCode",), "reactcode", OTHER, "what a program of yours returns"),
    *(
        Control((f"{name}{end}",), f"{name}{end}".lower(), OTHER, _REGIONS)
        for name in _IMAGE
        for end in ("Labels", "")
    ),
    Control(("MagicWand",), "magicwand", OTHER, _REGIONS),
)  # fmt: skip
_BY_TYPE = {control.type: control for control in CONTROLS}


def tasks(where: str, task: dict[str, Any], account: Account) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a task of Label Studio as its columns, one for each control; of a dialogue, each paragraph."""
    annotations = task["annotations"]
    if not isinstance(task["data"], dict) or not isinstance(annotations, list):
        raise CorpusError(f"{where}: not a task of Label Studio; export JSON or JSON-MIN")
    if len(annotations) != 1:
        predicted = "; predictions are no annotations: submit them in Label Studio" if task.get("predictions") else ""
        raise CorpusError(f"{where}: {len(annotations)} annotations; keep one{predicted}")
    if isinstance(annotations[0], dict) and annotations[0].get("was_cancelled"):
        raise CorpusError(f"{where}: the annotator has skipped it; remove it")
    columns: dict[str, Any] = {}
    no_place: dict[str, NoPlace] = {}  # by column
    paragraphs: list[tuple[str, dict[str, Any]]] = []  # column and span of a paragraph
    try:
        for name in annotations[0]:
            if name != "result":
                account.unused.setdefault(f"annotations.{name}", "the tool's own")
        for result in annotations[0]["result"]:
            kind, value = result["type"], result.get("value")
            control = _BY_TYPE.get(kind)
            if kind == "relation":
                account.unused.setdefault(kind, NO_RELATIONS)
                continue
            name = result["from_name"]
            if name in task["data"]:
                raise CorpusError(f"{where}: the control {name!r} is named as a column of the data; rename one")
            if result.get("meta") not in (None, {}):
                account.unused.setdefault("meta", "notes of the annotator")
            if control is None:
                no_place[name] = NoPlace(f"a control of the type {kind!r}, which is not known")
            elif control.role == NOTE:
                no_place.setdefault(name, NoPlace(control.what, is_label=False))
            elif control.role == OTHER:
                no_place[name] = NoPlace(f"{control.what} ({control.tags[0]}): {_NO_LABEL}")
            elif control.role != SPANS and {"start", "startOffset"} & set(value):
                no_place[name] = NoPlace(f"a {control.tags[0]} of one region: a span has one label")
            elif control.role == VALUE:
                columns[name] = value[kind]
            elif control.role == CHOICES:
                columns.setdefault(name, []).extend(_path(where, choice) for choice in value[kind])
            elif kind == "paragraphlabels":
                paragraphs.append((name, value))
            else:
                columns.setdefault(name, []).append(hypertext(where, value) if kind == "hypertextlabels" else value)
    except (AttributeError, LookupError, TypeError):
        raise CorpusError(f"{where}: not an annotation of Label Studio; export JSON or JSON-MIN") from None
    columns = task["data"] | columns | no_place
    dialogues = [name for name, value in task["data"].items() if _is_dialogue(value)]
    if paragraphs and len(dialogues) != 1:
        raise CorpusError(
            f"{where}: {len(dialogues)} lists of paragraphs with the key 'text' in data; there must be one"
        )
    if len(dialogues) == 1 and (paragraphs or "text" not in columns):
        yield from _utterances(where, columns, task["data"], dialogues[0], paragraphs)
    else:
        yield where, columns


def json_min(where: str, row: dict[str, Any], account: Account) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a row of JSON-MIN: nested choices with their paths, spans of HyperText with their global offsets."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        columns[name] = value
        if isinstance(value, list) and value and all(map(_is_path, value)):
            columns[name] = [_path(where, path) for path in value]
        elif isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
            if any("paragraphlabels" in part for part in value):
                raise CorpusError(
                    f"{where}: {name!r} has spans of paragraphs, which JSON-MIN has no text of; export JSON"
                )
            columns[name] = [
                hypertext(where, part) if {"hypertextlabels", "htmllabels"} & set(part) else part for part in value
            ]
    yield where, columns


def hypertext(where: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return a span of HyperText as one of its text: the offsets beside are those of a node of the HTML."""
    offsets = value.get("globalOffsets")
    if not isinstance(offsets, dict):
        raise CorpusError(f"{where}: a span of HyperText without globalOffsets; export it with a newer Label Studio")
    if not isinstance(value.get("text"), str):
        raise CorpusError(f"{where}: a span of HyperText without its text, which its offsets cannot be compared with")
    labels = value["hypertextlabels"] if "hypertextlabels" in value else value["htmllabels"]
    return {**offsets, "text": value["text"], "labels": labels}


def _is_path(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(level, str) for level in value)


def _path(where: str, choice: Any) -> Any:
    """Return a nested choice, a list from the topmost to the chosen one, as a name."""
    if not _is_path(choice):
        return choice
    if level := next((level for level in choice if "/" in level), None):
        raise CorpusError(f"{where}: the nested choice {level!r} has a /, which joins the levels; rename it")
    return "/".join(choice)


def _is_dialogue(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, dict) and "text" in part for part in value)


def _utterances(
    where: str, columns: dict[str, Any], data: dict[str, Any], name: str, spans: list[tuple[str, dict[str, Any]]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paragraphs of a dialogue, each with its spans; what is of the whole task is of no utterance."""
    dialogue = columns.pop(name)
    rows: list[dict[str, Any]] = [{control: [] for control, _ in spans} for _ in dialogue]
    for control, value in spans:
        first, last = str(value.get("start")), str(value.get("end"))
        if first != last:
            raise CorpusError(f"{where}: the span {first} to {last} goes over several paragraphs; split it")
        if not first.isdecimal() or int(first) >= len(dialogue):
            raise CorpusError(f"{where}: the span is in paragraph {first!r}, and there are {len(dialogue)}")
        span = {"start": value.get("startOffset"), "end": value.get("endOffset"), "labels": value["paragraphlabels"]}
        rows[int(first)][control].append(span | {key: value[key] for key in ("text",) if key in value})
    of_task = {
        name: NoPlace(f"of the whole dialogue, which has {len(dialogue)} utterances")
        if name not in data and not isinstance(value, NoPlace) and len(dialogue) > 1
        else value
        for name, value in columns.items()
    }
    for number, (paragraph, row) in enumerate(zip(dialogue, rows, strict=True), 1):
        if twice := sorted(set(paragraph) & set(of_task)):
            raise CorpusError(f"{where}: {twice[0]!r} is in data and in its paragraphs; rename one")
        yield f"{where}, paragraph {number}", of_task | paragraph | row
