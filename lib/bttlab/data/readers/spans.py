"""Spans of characters as annotation tools write them, and as tags of pieces of text."""

import contextlib
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..corpus import OUTSIDE, PAD, CorpusError
from ..label_names import label_name
from ..tokenizer import Piece, Tokenizer, unspaced
from .account import Account, Choices


@dataclass(frozen=True)
class SpanForm:
    """The keys of a span in one format: a span has all that it needs, and none that is not declared."""

    title: str
    start: str
    end: str
    label: str
    counts: str = "end"  # what the key of `end` has: "end" after the last character, "last" its place, or "length"
    text: str = ""  # key of a copy of the text, which must be what the offsets give
    value: str = ""  # key of the text or a normalized form: the same if the text has it
    unused: tuple[str, ...] = ()  # keys that tell nothing of the label

    @property
    def needs(self) -> set[str]:
        return {self.start, self.end, self.label}

    @property
    def known(self) -> set[str]:
        return self.needs | {self.text, self.value, *self.unused} - {""}


# `confidence` and what names a program are of the prediction that a span was corrected from.
FORMS = (
    SpanForm("doccano", "start_offset", "end_offset", "label", unused=("id",)),
    SpanForm("Label Studio", "start", "end", "labels", text="text", unused=("score", "id")),
    SpanForm(
        "Prodigy or spaCy", "start", "end", "label", text="text",
        unused=("token_start", "token_end", "id", "source", "input_hash", "score"),
    ),
    SpanForm(
        "Rasa or wit.ai", "start", "end", "entity", text="body", value="value",
        unused=("confidence", "confidence_entity", "extractor", "processors", "id"),
    ),
    SpanForm("LUIS", "startPos", "endPos", "entity", counts="last"),
    SpanForm("LUIS batch", "startCharIndex", "endCharIndex", "entityName", counts="last"),
    SpanForm("CLU", "offset", "length", "category", counts="length", unused=("confidenceScore",)),
)  # fmt: skip
EMPTY: tuple[Any, ...] = (None, "", [], {})  # a key with one of these says nothing


@dataclass(frozen=True)
class CharacterSpan:
    """A label of the characters of a text from `start` to before `end`, or of several such parts.

    `labels` are as they were written, with one blank between words; `tags_of` gives the name.
    """

    start: int
    end: int
    labels: tuple[str, ...]
    text: str | None = None  # what the tool wrote as its text
    value: str | None = None
    parts: tuple[tuple[int, int], ...] = ()  # of a span with gaps


def read_span(where: str, column: str, value: Any, choices: Choices, account: Account) -> CharacterSpan:
    """Return a span of a row's column.

    Raises CorpusError if no form fits; the message names the form that almost does, and what is left over.
    """
    if isinstance(value, CharacterSpan):
        return value
    if isinstance(value, list):
        if len(value) != 3:
            raise CorpusError(
                f"{where}: {_brief(value)} is not a span of {column!r}: it has {len(value)} parts; write "
                "[start, end, label]"
            )
        return _span(where, *value)
    if not isinstance(value, dict):
        raise CorpusError(f"{where}: {_brief(value)} is not a span of {column!r}; write [start, end, label]")
    keys = {key for key, content in value.items() if content not in EMPTY}
    ignored = {key for key in keys if f"{column}.{key}" in choices.ignore}
    fitting = [form for form in FORMS if form.needs <= keys and keys - ignored <= form.known]
    if len(fitting) != 1:
        raise CorpusError(f"{where}: {_brief(value)} is not a span of {column!r}: {_almost(keys - ignored, column)}")
    (form,) = fitting
    for key in value:
        if key in (*form.unused, *ignored) or value[key] in EMPTY:
            why = "--ignore" if key in ignored else "not of the label" if key in keys else "empty"
            account.unused.setdefault(f"{column}.{key}", why)
    start, end = value[form.start], value[form.end]
    if form.counts != "end" and _is_whole(start) and _is_whole(end):
        end = end + 1 if form.counts == "last" else start + end
    texts = [value.get(key) if key else None for key in (form.text, form.value)]
    for key, text in zip((form.text, form.value), texts, strict=True):
        if text is not None and not isinstance(text, str):
            raise CorpusError(f"{where}: a span's {key} is {_brief(text)}: it must be text")
    return _span(where, start, end, value[form.label], *texts)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _span(where: str, start: Any, end: Any, label: Any, text: str | None = None, value: str | None = None):
    for name, place in (("start", start), ("end", end)):
        if not _is_whole(place):
            raise CorpusError(f"{where}: a span's {name} is {place!r}: it must be a whole number of characters")
    labels = label if isinstance(label, list) else [label]
    if not labels or not all(isinstance(name, str) and name.strip() for name in labels):
        raise CorpusError(f"{where}: the label of the span {start} to {end} is {label!r}: it must be a name")
    return CharacterSpan(start, end, tuple(" ".join(name.split()) for name in labels), text, value)


def _almost(keys: set[str], column: str) -> str:
    form = max(FORMS, key=lambda form: (len(form.needs & keys), -len(keys - form.known)))
    missing, left = sorted(form.needs - keys), sorted(keys - form.known)
    parts = [f"{', '.join(missing)} missing"] * bool(missing) + [f"{', '.join(left)} left over"] * bool(left)
    ways = "it needs start, end and one label" if missing else f"leave it out with --ignore {column}.{left[0]}"
    return f"almost {form.title}'s ({'; '.join(parts)}); {ways}"


def _brief(value: Any) -> str:
    text = str(value)
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def in_characters(text: str, span: CharacterSpan) -> CharacterSpan | None:
    """Return a span whose offsets count UTF-16 units with offsets that count characters; None if one is in a pair."""
    places = {0: 0}
    unit = 0
    for number, character in enumerate(text, 1):
        unit += 1 + (ord(character) > 0xFFFF)
        places[unit] = number
    ends = [(places.get(a), places.get(b)) for a, b in ((span.start, span.end), *span.parts)]
    if any(a is None or b is None for a, b in ends):
        return None
    (start, end), *parts = ends
    return CharacterSpan(start, end, span.labels, span.text, span.value, tuple(parts))  # type: ignore[arg-type]


def fault_of(text: str, pieces: list[Piece], span: CharacterSpan) -> str | None:
    """Return what is wrong with a span of a text; None if nothing is."""
    start, end = span.start, span.end
    if not 0 <= start < end <= len(text):
        return f"is not within the {len(text)} characters of the text"
    covers = text[start:end].split()
    if span.text is not None and span.text.split() != covers:
        return f"has the text {span.text!r}, and not what the offsets give; correct the offsets"
    if span.value is not None and span.value.casefold().split() != [word.casefold() for word in covers]:
        if "_".join(covers) in map(label_name, span.labels):
            return f"has its text as label, and the value {span.value!r}; correct them"
        if _occurs(span.value.casefold(), text.casefold()):
            return f"has the value {span.value!r}, which is elsewhere in the text; correct the offsets"
    covered = [piece for piece in pieces if piece.start < end and piece.end > start]
    if not covered:
        return "has no word; correct it"
    if cut := [piece for piece in covered if piece.start < start or piece.end > end]:
        ways = _taking(text, span)
        way_out = f", or choose --tokenizer {' or '.join(ways)}, which splits it in each text" * bool(ways)
        return f"cuts the word {text[cut[0].start : cut[0].end]!r}; correct it{way_out}"
    last = next((piece for piece in pieces if piece.start >= end), None)
    if not covered[0].first or (last is not None and not last.first):
        return "ends within a word of the tokenizer; choose --tokenizer characters, or correct it"
    return None


def _taking(text: str, span: CharacterSpan) -> list[str]:
    """Return the tokenizers that split a text where a span begins and ends."""
    found = []
    with contextlib.suppress(ModuleNotFoundError):  # the package regex is optional
        for kind in ("words", "runs", "characters"):
            pieces = Tokenizer(kind).pieces(text)
            if {span.start} <= {piece.start for piece in pieces} and {span.end} <= {piece.end for piece in pieces}:
                found.append(kind)
    return found


def _occurs(value: str, text: str) -> bool:
    """Return True if a value is in a text, from word to word where the script puts spaces between them."""
    edges = ("", "") if unspaced(value) else (r"(?<!\w)", r"(?!\w)")
    return bool(value) and re.search(edges[0] + re.escape(value) + edges[1], text) is not None


def one_label(where: str, span: CharacterSpan, overlaps: str, left_out: Counter) -> CharacterSpan:
    """Return a span with one label and without gaps, as `overlaps` says."""
    if len(span.labels) > 1:
        if overlaps == "refuse":
            raise CorpusError(
                f"{where}: the span {span.start} to {span.end} has {len(span.labels)} labels "
                f"({', '.join(span.labels)}); --overlaps first keeps the first"
            )
        left_out["labels of a span beside its first"] += len(span.labels) - 1
    start, end = span.start, span.end
    if span.parts:
        if overlaps == "refuse":
            raise CorpusError(
                f"{where}: a span of {len(span.parts)} parts; --overlaps outer fills its gaps, longest and first keep "
                "one part"
            )
        if overlaps != "outer":
            sizes = {"longest": lambda part: part[0] - part[1], "first": lambda part: 0}
            start, end = min(span.parts, key=sizes[overlaps])
            left_out["parts of a span with gaps"] += len(span.parts) - 1
        else:
            left_out["gaps of a span, which are filled"] += len(span.parts) - 1
    alone = not span.parts or overlaps == "outer"
    return CharacterSpan(
        start, end, span.labels[:1], span.text if not span.parts else None, span.value if alone else None
    )


def without_overlaps(where: str, spans: list[CharacterSpan], overlaps: str, left_out: Counter) -> list[CharacterSpan]:
    """Return spans in order of which no two overlap; what is left out is counted."""
    rank = {
        "first": lambda place: place,
        "longest": lambda place: (spans[place].start - spans[place].end, place),
        "outer": lambda place: (spans[place].start - spans[place].end, place),
        "refuse": lambda place: (spans[place].start, spans[place].end, place),
    }[overlaps]
    kept: list[CharacterSpan] = []
    for place in sorted(range(len(spans)), key=rank):
        span = spans[place]
        other = next((k for k in kept if k.start < span.end and span.start < k.end), None)
        if other is None:
            kept.append(span)
        elif overlaps == "refuse":
            a, b = ((s.start, s.end, s.labels[0]) for s in (other, span))
            raise CorpusError(f"{where}: spans {a} and {b} overlap; keep one, or choose with --overlaps")
        elif overlaps == "outer" and not other.start <= span.start <= span.end <= other.end:
            a, b = ((s.start, s.end, s.labels[0]) for s in (other, span))
            raise CorpusError(
                f"{where}: of the spans {a} and {b} none is within the other; take --overlaps longest or first"
            )
        else:
            left_out["spans that overlap another"] += 1
    return sorted(kept, key=lambda span: span.start)


def tags_of(where: str, text: str, pieces: list[Piece], spans: list[CharacterSpan]) -> list[str]:
    """Return the BIO tags of pieces of a text; PAD for a subword that continues a word.

    Raises CorpusError if a span is outside the text, has no word, or ends within one.
    """
    tags = [OUTSIDE if piece.first else PAD for piece in pieces]
    for span in spans:
        if fault := fault_of(text, pieces, span):
            given = text[max(span.start, 0) : max(span.end, 0)]
            raise CorpusError(f"{where}: the span {span.start} to {span.end} ({given!r}) {fault}")
        letter = "B"
        for place, piece in enumerate(pieces):
            if piece.first and piece.start < span.end and piece.end > span.start:
                tags[place] = f"{letter}-{label_name(span.labels[0])}"
                letter = "I"
    return tags


def chosen_offsets(
    rows: list[tuple[str, str, list[CharacterSpan]]], tokenizer: Tokenizer, offsets: str | None
) -> list[list[CharacterSpan]]:
    """Return the spans of (place, text, spans) with offsets in characters.

    Some tools count UTF-16 units, of which an emoji has two. Raises CorpusError if both ways to count fit a file and
    give different words, or only that in UTF-16 fits.
    """
    if offsets == "utf-16":
        found = []
        for where, text, spans in rows:
            changed = [in_characters(text, span) for span in spans]
            if None in changed:
                raise CorpusError(
                    f"{where}: an offset is within a character or outside of the text; take --offsets characters"
                )
            found.append([span for span in changed if span is not None])
        return found
    both: str | None = None  # place of an utterance that may be read both ways
    for where, text, spans in rows if offsets is None else ():
        if not spans or text.isascii() or all(ord(character) <= 0xFFFF for character in text):
            continue
        other = [in_characters(text, span) for span in spans]
        if other == spans:
            continue
        pieces = tokenizer.pieces(text)
        others = [span for span in other if span is not None]
        here = not any(fault_of(text, pieces, span) for span in spans)
        there = len(others) == len(spans) and not any(fault_of(text, pieces, span) for span in others)
        if there and not here:
            raise CorpusError(f"{where}: the offsets of spans count UTF-16 units; take --offsets utf-16")
        if here and not there:
            both = None
            break
        if (
            here
            and there
            and any(
                [p for p in pieces if p.start < a.end and p.end > a.start]
                != [p for p in pieces if p.start < b.end and p.end > b.start]
                for a, b in zip(spans, others, strict=True)
            )
        ):
            both = both or where
    if both:
        raise CorpusError(
            f"{both}: the offsets may count characters or UTF-16 units; say with --offsets characters or utf-16"
        )
    return [spans for _, _, spans in rows]
