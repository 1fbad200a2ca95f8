"""Formats of rows, declared: JSON of annotation tools, tables, parquet."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..corpus import CorpusError
from . import label_studio
from .account import NO_RELATIONS, Account

TEXT, LABEL, TAGS, SPANS, MARKUP = "text", "intent", "tags", "spans", "text with tags in brackets"
ANNOTATION = "tags or spans"  # which of them, and for some columns an intent, the values say

# What a column of these names has if the user says nothing.
USUAL: Mapping[str, str] = {
    **dict.fromkeys(("text", "tokens", "words"), TEXT),
    **dict.fromkeys(("intent", "cats"), LABEL),
    **dict.fromkeys(("tags", "ner_tags", "slots", "entities", "spans", "label", "labels", "annotations"), ANNOTATION),
}
Convert = Callable[[str, dict[str, Any], Account], Iterable[tuple[str, dict[str, Any]]]]


@dataclass(frozen=True)
class Reader:
    """A format whose rows are objects: the keys that only it has, and what each key means."""

    title: str
    needs: tuple[str, ...] = ()  # keys of every row, by which it is told from others
    columns: Mapping[str, str] = field(default_factory=lambda: USUAL)  # meaning, by key
    unused: Mapping[str, str] = field(default_factory=dict)  # why a key is not read
    optional: tuple[str, ...] = ()  # keys that a row without labels may lack
    is_open: bool = False  # whether a row may have other keys with plain values: they are named as unused
    at: str = ""  # keys from the file's object to the list of rows, with a dot between
    beside: Mapping[str, str] = field(default_factory=dict)  # why the file's other keys are not read
    convert: Convert | None = None  # a row's place and values, as those of one utterance or several
    example: str = ""  # for docs/import.md


def prodigy(where: str, row: dict[str, Any], account: Account) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a task of Prodigy: of choices, `accept` has the intents."""
    if row.get("answer", "accept") != "accept":
        raise CorpusError(f"{where}: the annotator's answer is {row['answer']}; remove the line")
    for token in row.get("tokens") or ():
        if isinstance(token, dict) and {"text", "start", "end"} <= set(token) and isinstance(row.get("text"), str):
            if row["text"][token["start"] : token["end"]] != token["text"]:
                raise CorpusError(f"{where}: the token {token['text']!r} is not at {token['start']} to {token['end']}")
    known = {option.get("id") for option in row.get("options") or () if isinstance(option, dict)}
    if wrong := [name for name in row.get("accept") or () if known and name not in known]:
        raise CorpusError(f"{where}: the choice {wrong[0]!r} is none of the options")
    yield where, row


def spacy_pair(where: str, row: dict[str, Any], account: Account) -> Iterator[tuple[str, dict[str, Any]]]:
    yield where, {"text": row["text"], **row["annotations"]}


def spacy_documents(where: str, row: dict[str, Any], account: Account) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the sentences of a document in spaCy's JSON, with their BILUO tags."""
    try:
        for part in row["paragraphs"]:
            sentences = part["sentences"]
            for level, parts in (("paragraphs", [part]), ("sentences", sentences)):
                for name in {name for one in parts for name in one if one[name]} - {"sentences", "cats", "tokens"}:
                    if name not in ("raw", "brackets", "links", "spans"):
                        raise CorpusError(f"{where}: almost spaCy JSON; left over: {level}.{name}; remove it")
                    account.unused.setdefault(f"{level}.{name}", "of the words or of the syntax")
            cats = {cat["label"]: cat["value"] for cat in part.get("cats") or ()}
            if cats and len(sentences) > 1:
                raise CorpusError(f"{where}: cats of {len(sentences)} sentences; give each a paragraph of its own")
            for number, sentence in enumerate(sentences, 1):
                tokens = sentence["tokens"]
                for name in sorted({name for token in tokens for name in token} - {"orth", "ner"}):
                    account.unused.setdefault(f"tokens.{name}", "of the syntax")
                values: dict[str, Any] = {"words": [token["orth"] for token in tokens]}
                if any("ner" in token for token in tokens):
                    values["tags"] = [_from_biluo(token["ner"]) for token in tokens]
                yield f"{where}, sentence {number}", values | ({"cats": cats} if cats else {})
    except (AttributeError, KeyError, TypeError):
        raise CorpusError(f"{where}: not a document of spaCy's JSON, with paragraphs, sentences and tokens") from None


def _from_biluo(tag: str) -> str:
    """Return a tag of spaCy's BILUO in BIO; "-", of a word that nobody has labelled, stays and is refused."""
    return {"U-": "B-", "L-": "I-"}.get(tag[:2], tag[:2]) + tag[2:]


def _hugging_face_row(where: str, row: dict[str, Any], account: Account) -> Iterator[tuple[str, dict[str, Any]]]:
    if row.get("truncated_cells"):
        raise CorpusError(f"{where}: the cells {row['truncated_cells']} are cut; download the parquet file")
    yield where, row["row"]


_OWN = "the tool's own"
_SPLITS = "splits are files: --dev and --test"
_TASK_KEYS = (
    "id created_at updated_at inner_id total_annotations cancelled_annotations total_predictions comment_count "
    "unresolved_comment_count last_comment_updated_at project updated_by comment_authors drafts file_upload meta "
    "annotation_results predictions_score allow_skip precomputed_agreement"
).split()
_PRODIGY_KEYS = (
    "_input_hash _task_hash _session_id _view_id _timestamp _annotator_id _is_binary meta answer config".split()
)

READERS = (
    Reader(
        "rows with columns: tables, doccano, Hugging Face datasets, JSON of your own",
        unused={"id": _OWN, "Comments": "notes of annotators", "relations": NO_RELATIONS},
        is_open=True,
        example='`{"text": "fly to lima", "label": [[7, 11, "city"]]}`, `tokens` with `ner_tags`',
    ),
    Reader(
        "Label Studio JSON",
        needs=("data", "annotations"),
        columns=USUAL,
        unused={**dict.fromkeys(_TASK_KEYS, _OWN), "predictions": "predictions, and not annotations"},
        optional=("*",),
        is_open=True,
        convert=label_studio.tasks,
        example="each control as the table below says",
    ),
    Reader(
        "Label Studio JSON-MIN",
        needs=("annotation_id",),
        unused=dict.fromkeys(
            "id annotator annotation_id created_at updated_at lead_time agreement".split(), _OWN
        ),
        is_open=True,
        optional=("*",),
        convert=label_studio.json_min,
        example="a key for each control",
    ),
    *(
        Reader(
            "Prodigy",
            needs=(key,),
            columns={"text": TEXT, "spans": ANNOTATION, "label": LABEL, "accept": LABEL, "cats": LABEL},
            unused={
                **dict.fromkeys(_PRODIGY_KEYS, _OWN),
                "tokens": "compared with the text",
                "options": "the available choices",
                "relations": NO_RELATIONS,
            },
            is_open=True,
            convert=prodigy,
            example="`spans`, `accept` of choices, `label`" if key == "answer" else "",
        )
        for key in ("answer", "_input_hash")
    ),
    Reader(
        "MASSIVE",
        needs=("utt", "annot_utt"),
        columns={"annot_utt": MARKUP, "utt": "compared with annot_utt", "intent": LABEL},
        unused={
            **dict.fromkeys(("id", "locale", "worker_id"), _OWN),
            "partition": _SPLITS,
            "scenario": "the domain, which the intent begins with",
            "slot_method": "how values were translated",
            "judgments": "judgments of the translation",
        },
        example='`"annot_utt": "wake me at [time : nine]"`, compared with `utt`',
    ),
    Reader(
        "Rasa JSON",
        at="rasa_nlu_data.common_examples",
        columns={"text": TEXT, "intent": LABEL, "entities": SPANS},
        optional=("entities",),
        beside=dict.fromkeys(("regex_features", "lookup_tables", "entity_synonyms"), "of Rasa's own features"),
        example='`{"start": 7, "end": 11, "value": "lima", "entity": "city"}`',
    ),
    Reader(
        "CLU",
        at="assets.utterances",
        columns={"text": TEXT, "intent": LABEL, "entities": SPANS},
        unused={"language": _OWN, "dataset": _SPLITS},
        beside=dict.fromkeys(
            ("projectFileVersion", "stringIndexType", "metadata", "intents", "entities", "projectKind"),
            "of the project",
        ),
        example="`offset`, `length`, `category`",
    ),
    Reader(
        "LUIS or wit.ai",
        at="utterances",
        columns={"text": TEXT, "intent": LABEL, "entities": SPANS},
        unused={"traits": "wit.ai's own"},
        beside=dict.fromkeys(
            "luis_schema_version intents entities culture name desc versionId patterns patternAnyEntities "
            "regex_entities prebuiltEntities regex_features phraselists closedLists composites hierarchicals "
            "bing_entities settings tokenizerVersion model_features".split(),
            "of the project",
        ),
        example="`startPos`, `endPos`, `entity`; `start`, `end`, `body`, `entity`",
    ),
    Reader(
        "LUIS batch",
        needs=("intentName", "entityLabels"),
        columns={"text": TEXT, "intentName": LABEL, "entityLabels": SPANS},
        unused={"exampleId": _OWN},
        example="`startCharIndex`, `endCharIndex`, `entityName`",
    ),
    Reader(
        "spaCy's training data",
        needs=("text", "annotations", "is pair"),
        columns={"text": TEXT, "entities": SPANS, "cats": LABEL},
        unused={"links": _OWN},
        convert=spacy_pair,
        example='`["fly to lima", {"entities": [[7, 11, "city"]]}]`',
    ),
    Reader(
        "spaCy's Doc.to_json",
        needs=("text", "ents"),
        columns={"text": TEXT, "ents": SPANS, "cats": LABEL, "intent": LABEL},
        unused={
            **dict.fromkeys(("tokens", "sents"), "of the syntax"),
            "spans": "span groups; ents has the spans that are read",
        },
        is_open=True,
        example='`"ents": [{"start": 7, "end": 11, "label": "city"}]`',
    ),
    Reader(
        "spaCy JSON",
        needs=("paragraphs",),
        columns={"words": TEXT, "tags": TAGS, "cats": LABEL},
        unused={"id": _OWN},
        convert=spacy_documents,
        example="`paragraphs` with `orth` and `ner` of each token",
    ),
    Reader(
        "rows of the Hugging Face dataset server",
        at="rows",
        needs=("row", "row_idx"),
        unused={"truncated_cells": "none is cut"},
        beside={
            "features": "names of the labels", **dict.fromkeys(("num_rows_total", "num_rows_per_page", "partial"), _OWN)
        },
        is_open=True,
        convert=_hugging_face_row,
        example="`features` with the names of a ClassLabel",
    ),
)  # fmt: skip
