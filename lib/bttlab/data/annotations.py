"""Spans of characters, as annotation tools write them, as tags of words."""

import itertools
import re
from typing import Any

from .corpus import OUTSIDE, PUNCTUATION, CorpusError

_KEYS = (("start", "end"), ("start_offset", "end_offset"))
Span = tuple[int, int, str]  # of characters: start, end, label


def is_spans(value: Any) -> bool:
    """Return True for a list of spans: [start, end, label], or objects with a start and an end."""
    return isinstance(value, list) and bool(value) and all(_read(span) is not None for span in value)


def read_spans(where: str, values: Any) -> list[Span]:
    """Return spans in order; CorpusError if a value is not a list of spans, or two overlap."""
    if not isinstance(values, list):
        raise CorpusError(f"{where}: {str(values)[:40]!r} is not a list of spans, as other lines have")
    spans = []
    for value in values:
        if (span := _read(value)) is None:
            raise CorpusError(f"{where}: {str(value)[:60]!r} is not a span; write [start, end, label]")
        spans.append(span)
    spans.sort()
    for before, after in itertools.pairwise(spans):
        if after[0] < before[1]:
            raise CorpusError(f"{where}: spans {before} and {after} overlap; keep one")
    return spans


def _read(value: Any) -> Span | None:
    label: Any
    if isinstance(value, list) and len(value) == 3:
        start, end, label = value
    elif isinstance(value, dict) and (keys := next((keys for keys in _KEYS if set(keys) <= set(value)), None)):
        start, end = (value[key] for key in keys)
        label = value.get("labels", value.get("label"))  # a list of one in Label Studio
        if isinstance(label, list) and len(label) == 1:
            (label,) = label
    else:
        return None
    are_whole = all(isinstance(place, int) and not isinstance(place, bool) for place in (start, end))
    return (start, end, label) if are_whole and isinstance(label, str) and label.strip() else None


def span_tags(where: str, text: str, spans: list[Span]) -> tuple[list[str], list[str]]:
    """Return the words of a text, without punctuation at their ends, and their tags in BIO.

    Raises CorpusError if a span is outside the text, has no word, or ends within one.
    """
    words: list[Span] = []
    for match in re.finditer(r"\S+", text):
        word = match[0].strip(PUNCTUATION)
        start = match.start() + len(match[0]) - len(match[0].lstrip(PUNCTUATION))
        if word:
            words.append((start, start + len(word), word))
    tags = [OUTSIDE] * len(words)
    for start, end, label in spans:
        covered = [i for i, (first, last, _) in enumerate(words) if first < end and last > start]
        cut = [words[i][2] for i in covered if words[i][0] < start or words[i][1] > end]
        inside = 0 <= start < end <= len(text)
        if not inside or not covered or cut:
            why = f"cuts the word {cut[0]!r}" if inside and cut else "has no word"
            why = why if inside else f"is not within the {len(text)} characters of the text"
            raise CorpusError(f"{where}: the span {start} to {end} ({text[max(start, 0) : end]!r}) {why}; correct it")
        for i in covered:
            tags[i] = f"{'B' if i == covered[0] else 'I'}-{'_'.join(label.split())}"
    return [word for _, _, word in words], tags


def label_studio_row(where: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a task of Label Studio's JSON as its columns, one for each control; other rows as they are.

    Raises CorpusError if a task has several annotations, or none.
    """
    if not isinstance(row.get("data"), dict) or not isinstance(row.get("annotations"), list):
        return row
    annotations = row["annotations"]
    if len(annotations) != 1:
        raise CorpusError(f"{where}: {len(annotations)} annotations; keep one")
    if isinstance(annotations[0], dict) and annotations[0].get("was_cancelled"):
        raise CorpusError(f"{where}: the annotator has skipped it; remove it")
    columns: dict[str, Any] = dict(row["data"])
    try:
        for result in annotations[0]["result"]:
            if result.get("type") == "relation":
                continue
            value = result["value"]
            if "choices" in value:
                columns[result["from_name"]] = value["choices"]
            else:
                columns.setdefault(result["from_name"], []).append(value)
    except (AttributeError, LookupError, TypeError):
        raise CorpusError(f"{where}: not an annotation of Label Studio; export JSON or JSON-MIN") from None
    return columns
