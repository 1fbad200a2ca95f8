"""Write utterances as annotation tools do, from the tools' documentation: independent of the readers in `bttlab.data`.

An utterance is words, BIO tags and an intent. A writer gives the name of a file and its content; one of JSON writes
changed rows, too.
"""

import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Utterance:
    words: tuple[str, ...]
    tags: tuple[str, ...]
    intent: str

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def chunks(self) -> list[tuple[int, int, str]]:
        """(first word, last word, type) of each chunk."""
        found: list[list[Any]] = []
        for place, tag in enumerate(self.tags):
            if tag[0] == "B":
                found.append([place, place, tag[2:]])
            elif tag[0] == "I":
                found[-1][1] = place
        return [tuple(chunk) for chunk in found]  # type: ignore[misc]

    def spans(self) -> list[tuple[int, int, str]]:
        """(start, end, type) of each chunk in characters."""
        starts = [len(" ".join((*self.words[:place], ""))) for place in range(len(self.words))]
        return [(starts[a], starts[b] + len(self.words[b]), kind) for a, b, kind in self.chunks()]


@dataclass(frozen=True)
class JsonWriter:
    """A format of rows: `row` makes one, `around` the file of all; `spans` has the key of the list of spans."""

    name: str
    row: Callable[[Utterance], Any]
    around: Callable[[list[Any]], Any] | None = None  # None: a row in each line
    spans: str = ""  # key of the row's list of objects with offsets
    start: str = ""  # keys of a span
    end: str = ""
    optional: frozenset[str] = frozenset()  # keys that the tool leaves out where there are no labels
    has_intents: bool = True

    def content(self, rows: list[Any]) -> str:
        if self.around is None:
            return "".join(f"{json.dumps(row)}\n" for row in rows)
        return json.dumps(self.around(rows))


def _spans(u: Utterance, make: Callable[[int, int, str], Any]) -> list[Any]:
    return [make(*span) for span in u.spans()]


def _studio(u: Utterance) -> list[dict[str, Any]]:
    spans = [
        {"value": {"start": a, "end": b, "text": u.text[a:b], "labels": [kind]}, "from_name": "label", "type": "labels"}
        for a, b, kind in u.spans()
    ]
    return [*spans, {"value": {"choices": [u.intent]}, "from_name": "intent", "type": "choices"}]


def _studio_dialogue(u: Utterance) -> list[dict[str, Any]]:
    """Paragraphs are numbered in strings, as Label Studio does; offsets count within one."""
    spans = [
        {
            "value": {
                "start": "0",
                "end": "0",
                "startOffset": a,
                "endOffset": b,
                "text": u.text[a:b],
                "paragraphlabels": [kind],
            },
            "from_name": "label",
            "type": "paragraphlabels",
        }
        for a, b, kind in u.spans()
    ]
    return [*spans, {"value": {"choices": [u.intent]}, "from_name": "intent", "type": "choices"}]


def _studio_html(u: Utterance) -> list[dict[str, Any]]:
    return [
        {
            "value": {
                "start": "/text()[1]",
                "end": "/text()[1]",
                "startOffset": a,
                "endOffset": b,
                "globalOffsets": {"start": a, "end": b},
                "text": u.text[a:b],
                "hypertextlabels": [kind],
            },
            "from_name": "label",
            "type": "hypertextlabels",
        }
        for a, b, kind in u.spans()
    ]


def _massive(u: Utterance) -> str:
    parts, place = [], 0
    for a, b, kind in u.chunks():
        parts += [*u.words[place:a], f"[{kind} : {' '.join(u.words[a : b + 1])}]"]
        place = b + 1
    return " ".join([*parts, *u.words[place:]])


BILUO = {"B": "U", "I": "L"}
TAGS = ["O", "B-city", "I-city", "B-date", "I-date"]  # of the utterances that are drawn, as a ClassLabel numbers them


def _biluo(u: Utterance) -> list[str]:
    after = [*u.tags[1:], "O"]
    return [
        tag if tag == "O" or following[0] == "I" else BILUO[tag[0]] + tag[1:]
        for tag, following in zip(u.tags, after, strict=True)
    ]


JSON_WRITERS = [
    JsonWriter("words.jsonl", lambda u: {"tokens": list(u.words), "tags": list(u.tags), "intent": u.intent}),
    JsonWriter(
        "doccano.jsonl",
        lambda u: {"id": 1, "text": u.text, "label": _spans(u, lambda a, b, kind: [a, b, kind]), "Comments": []},
        has_intents=False,
    ),
    JsonWriter(
        "relations.jsonl",
        lambda u: {
            "id": 1,
            "text": u.text,
            "entities": _spans(u, lambda a, b, kind: {"id": a, "label": kind, "start_offset": a, "end_offset": b}),
            "relations": [],
        },
        spans="entities",
        start="start_offset",
        end="end_offset",
        has_intents=False,
    ),
    JsonWriter(
        "prodigy.jsonl",
        lambda u: {
            "text": u.text,
            "spans": _spans(u, lambda a, b, kind: {"start": a, "end": b, "label": kind}),
            "accept": [u.intent],
            "_input_hash": 3,
            "answer": "accept",
        },
        spans="spans",
        start="start",
        end="end",
    ),
    JsonWriter(
        "studio.json",
        lambda u: {"id": 1, "data": {"text": u.text}, "annotations": [{"id": 2, "result": _studio(u)}]},
        around=lambda rows: rows,
    ),
    JsonWriter(
        "studio_min.json",
        lambda u: (
            {"text": u.text, "id": 1, "intent": u.intent, "annotation_id": 3, "lead_time": 1.5}
            | (
                {"label": _spans(u, lambda a, b, kind: {"start": a, "end": b, "text": u.text[a:b], "labels": [kind]})}
                if u.spans()
                else {}
            )
        ),
        around=lambda rows: rows,
        spans="label",
        start="start",
        end="end",
        optional=frozenset({"label"}),
    ),
    JsonWriter(
        "rasa.json",
        lambda u: {
            "text": u.text,
            "intent": u.intent,
            "entities": _spans(u, lambda a, b, kind: {"start": a, "end": b, "value": u.text[a:b], "entity": kind}),
        },
        around=lambda rows: {"rasa_nlu_data": {"common_examples": rows}},
        spans="entities",
        start="start",
        end="end",
        optional=frozenset({"entities"}),
    ),
    JsonWriter(
        "luis.json",
        lambda u: {
            "text": u.text,
            "intent": u.intent,
            "entities": _spans(u, lambda a, b, kind: {"startPos": a, "endPos": b - 1, "entity": kind, "children": []}),
        },
        around=lambda rows: {"luis_schema_version": "7.0.0", "culture": "en-us", "utterances": rows},
        spans="entities",
        start="startPos",
        end="endPos",
    ),
    JsonWriter(
        "wit.json",
        lambda u: {
            "text": u.text,
            "intent": u.intent,
            "entities": _spans(u, lambda a, b, kind: {"start": a, "end": b, "body": u.text[a:b], "entity": kind}),
            "traits": [],
        },
        around=lambda rows: {"utterances": rows},
        spans="entities",
        start="start",
        end="end",
    ),
    JsonWriter(
        "clu.json",
        lambda u: {
            "text": u.text,
            "intent": u.intent,
            "entities": _spans(u, lambda a, b, kind: {"offset": a, "length": b - a, "category": kind}),
        },
        around=lambda rows: {"assets": {"utterances": rows}},
        spans="entities",
        start="offset",
        end="length",
    ),
    JsonWriter(
        "luis_batch.json",
        lambda u: {
            "text": u.text,
            "intentName": u.intent,
            "entityLabels": _spans(
                u, lambda a, b, kind: {"startCharIndex": a, "endCharIndex": b - 1, "entityName": kind}
            ),
        },
        around=lambda rows: rows,
        spans="entityLabels",
        start="startCharIndex",
        end="endCharIndex",
    ),
    JsonWriter(
        "studio_dialogue.json",
        lambda u: {
            "id": 1,
            "data": {"turns": [{"author": "me", "text": u.text}]},
            "annotations": [{"id": 2, "result": _studio_dialogue(u)}],
        },
        around=lambda rows: rows,
    ),
    JsonWriter(
        "studio_html.json",
        lambda u: {"id": 1, "data": {"text": u.text}, "annotations": [{"id": 2, "result": _studio_html(u)}]},
        around=lambda rows: rows,
        has_intents=False,
    ),
    JsonWriter(
        "dataset_server.json",
        lambda u: {
            "row_idx": 0,
            "row": {"tokens": list(u.words), "ner_tags": [TAGS.index(tag) for tag in u.tags], "intent": u.intent},
            "truncated_cells": [],
        },
        around=lambda rows: {
            "features": [
                {"feature_idx": 0, "name": "tokens", "type": {"feature": {"dtype": "string"}, "_type": "Sequence"}},
                {
                    "feature_idx": 1,
                    "name": "ner_tags",
                    "type": {"feature": {"names": TAGS, "_type": "ClassLabel"}, "_type": "Sequence"},
                },
                {"feature_idx": 2, "name": "intent", "type": {"dtype": "string", "_type": "Value"}},
            ],
            "rows": rows,
            "num_rows_total": len(rows),
            "num_rows_per_page": 100,
            "partial": False,
        },
    ),
    JsonWriter("massive.jsonl", lambda u: {"id": "1", "utt": u.text, "annot_utt": _massive(u), "intent": u.intent}),
    JsonWriter(
        "pairs.json",
        lambda u: [u.text, {"entities": _spans(u, lambda a, b, kind: [a, b, kind])}],
        around=lambda rows: rows,
        has_intents=False,
    ),
    JsonWriter(
        "spacy_doc.json",
        lambda u: {
            "text": u.text,
            "ents": _spans(u, lambda a, b, kind: {"start": a, "end": b, "label": kind}),
            "sents": [{"start": 0, "end": len(u.text)}],
            "tokens": [{"id": n, "start": 0, "end": 1} for n, _ in enumerate(u.words)],
            "cats": {intent: float(intent == u.intent) for intent in "xy"},
        },
        around=lambda rows: rows,
        spans="ents",
        start="start",
        end="end",
    ),
    JsonWriter(
        "spacy.json",
        lambda u: {
            "id": 1,
            "paragraphs": [
                {
                    "sentences": [
                        {
                            "tokens": [
                                {"id": n, "orth": word, "ner": tag}
                                for n, (word, tag) in enumerate(zip(u.words, _biluo(u), strict=True))
                            ]
                        }
                    ]
                }
            ],
        },
        around=lambda rows: rows,
        has_intents=False,
    ),
]


def _csv(utterances: list[Utterance]) -> str:
    return "text,intent,tags\n" + "".join(f"{u.text},{u.intent},{' '.join(u.tags)}\n" for u in utterances)


def _lines(u: Utterance, line: Callable[[int, str, str], str]) -> str:
    pairs = zip(u.words, u.tags, strict=True)
    return "".join(f"{line(number, word, tag)}\n" for number, (word, tag) in enumerate(pairs, 1)) + "\n"


def _conll(utterances: list[Utterance]) -> str:
    return "".join(f"# intent: {u.intent}\n" + _lines(u, lambda n, word, tag: f"{word}\t{tag}") for u in utterances)


def _conll_2003(utterances: list[Utterance]) -> str:
    return "-DOCSTART- -X- O O\n\n" + "".join(
        f"# intent: {u.intent}\n" + _lines(u, lambda n, word, tag: f"{word} NN I-NP {tag}") for u in utterances
    )


def _conll_u_plus(utterances: list[Utterance]) -> str:
    return "# global.columns = ID FORM UPOS NE\n" + "".join(
        f"# text = {u.text}\n# intent = {u.intent}\n" + _lines(u, lambda n, word, tag: f"{n}\t{word}\tX\t{tag}")
        for u in utterances
    )


def _tokens(utterances: list[Utterance]) -> str:
    rows = ["Sentence #,Word,POS,Tag\n"]
    for number, u in enumerate(utterances, 1):
        names = [f"Sentence: {number}", *[""] * (len(u.words) - 1)]
        rows += [f"{name},{word},NN,{tag}\n" for name, word, tag in zip(names, u.words, u.tags, strict=True)]
    return "".join(rows)


def _webanno(utterances: list[Utterance]) -> str:
    """Offsets count UTF-16 units, as Java's; a span of several tokens has a number in brackets."""
    found, begin, number = ["#FORMAT=WebAnno TSV 3.3\n#T_SP=webanno.custom.Slot|value\n\n"], 0, 0
    for place, u in enumerate(utterances, 1):
        cells = ["_"] * len(u.words)
        for a, b, kind in u.chunks():
            number += 1
            for word in range(a, b + 1):
                cells[word] = kind if a == b else f"{kind}[{number}]"
        found.append(f"\n#Text={u.text}\n")
        for n, (word, cell) in enumerate(zip(u.words, cells, strict=True), 1):
            end = begin + len(word.encode("utf-16-le")) // 2
            found.append(f"{place}-{n}\t{begin}-{end}\t{word}\t{cell}\t\n")
            begin = end + 1
    return "".join(found)


def _rasa_yaml(utterances: list[Utterance]) -> str:
    blocks = ['version: "3.1"\nnlu:\n']
    for u in utterances:
        parts, place = [], 0
        for a, b, kind in u.chunks():
            parts += [*u.words[place:a], f"[{' '.join(u.words[a : b + 1])}]({kind})"]
            place = b + 1
        blocks.append(f"- intent: {u.intent}\n  examples: |\n    - {' '.join([*parts, *u.words[place:]])}\n")
    return "".join(blocks)


TEXT_WRITERS: dict[str, tuple[Callable[[list[Utterance]], str], bool]] = {  # and whether they have intents
    "a.csv": (_csv, True),
    "a.conll": (_conll, True),
    "a_2003.conll": (_conll_2003, True),
    "a.conllup": (_conll_u_plus, True),
    "tokens.csv": (_tokens, False),
    "webanno.tsv": (_webanno, False),
    "a.yml": (_rasa_yaml, True),
}


# --- files that are no text, and folders


def _parquet(utterances: list[Utterance]) -> bytes:
    """Parquet by pyarrow, with the features beside that `datasets` of Hugging Face writes into its metadata."""
    import pyarrow
    from pyarrow import parquet

    intents = sorted({u.intent for u in utterances})
    features = {
        "tokens": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "Sequence"},
        "ner_tags": {"feature": {"names": TAGS, "_type": "ClassLabel"}, "_type": "Sequence"},
        "intent": {"names": intents, "_type": "ClassLabel"},
    }
    table = pyarrow.table(
        {
            "tokens": [list(u.words) for u in utterances],
            "ner_tags": [[TAGS.index(tag) for tag in u.tags] for u in utterances],
            "intent": [intents.index(u.intent) for u in utterances],
        }
    )
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    into = io.BytesIO()
    parquet.write_table(table, into)
    return into.getvalue()


def murmur_64a(key: bytes, seed: int = 1) -> int:
    """MurmurHash64A as Austin Appleby published it in 2008, by which spaCy numbers strings."""
    m, r, most = 0xC6A4A7935BD1E995, 47, 2**64
    h = (seed ^ (len(key) * m)) % most
    for place in range(0, len(key) - len(key) % 8, 8):
        k = int.from_bytes(key[place : place + 8], "little") * m % most
        k ^= k >> r
        h = (h ^ (k * m % most)) * m % most
    tail = key[len(key) - len(key) % 8 :]
    for place in reversed(range(len(tail))):
        h ^= tail[place] << (8 * place)
    if tail:
        h = h * m % most
    h ^= h >> r
    h = h * m % most
    return h ^ (h >> r)


def _docbin(utterances: list[Utterance]) -> bytes:
    """DocBin as spaCy's documentation of its data formats says: msgpack of columns, compressed by zlib."""
    import msgpack

    codes = {"B": 3, "I": 1, "O": 2}
    rows = [
        (murmur_64a(word.encode()), codes[tag[0]], murmur_64a(tag[2:].encode()) if tag[2:] else 0)
        for u in utterances
        for word, tag in zip(u.words, u.tags, strict=True)
    ]
    intents = sorted({u.intent for u in utterances})
    content = {
        "version": "0.1",
        "attrs": [65, 77, 78],  # ORTH, ENT_IOB, ENT_TYPE
        "tokens": b"".join(struct.pack("<3Q", *row) for row in rows),
        "spaces": bytes(1 for _ in rows),
        "lengths": struct.pack(f"<{len(utterances)}i", *(len(u.words) for u in utterances)),
        "strings": [
            "",
            *sorted({part for u in utterances for part in (*u.words, *(tag[2:] for tag in u.tags))} - {""}),
        ],
        "cats": [{intent: float(intent == u.intent) for intent in intents} for u in utterances],
        "flags": [{"has_unknown_spaces": False} for _ in utterances],
        "span_groups": [b"\x90" for _ in utterances],
    }
    return zlib.compress(msgpack.packb(content))


def _brat(utterances: list[Utterance]) -> dict[str, str]:
    """A text of brat with an utterance in each line, and its .ann: id, label and offsets, text, between tabs."""
    text, spans = "", []
    for u in utterances:
        spans += [(kind, len(text) + a, len(text) + b, u.text[a:b]) for a, b, kind in u.spans()]
        text += f"{u.text}\n"
    lines = [f"T{n}\t{kind} {a} {b}\t{words}\n" for n, (kind, a, b, words) in enumerate(spans, 1)]
    return {"a.txt": text, "a.ann": "".join(lines), "annotation.conf": "[entities]\ncity\ndate\n"}


def _texts(utterances: list[Utterance]) -> dict[str, str]:
    return {f"{u.intent}/{number:03}.txt": u.text for number, u in enumerate(utterances)}


OTHER_WRITERS: dict[str, Callable[[list[Utterance]], bytes | dict[str, str]]] = {  # of a folder the files by name
    "a.parquet": _parquet,
    "a.spacy": _docbin,
    "brat": _brat,
    "texts": _texts,
}
