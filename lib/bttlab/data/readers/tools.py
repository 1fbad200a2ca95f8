"""Formats that are no rows of columns: brat standoff, Rasa YAML, spaCy's DocBin, tags in brackets."""

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bttlab.util.reading import MOST_BYTES, read_bytes, read_text

from ..corpus import OUTSIDE, CorpusError
from .account import Account, Choices, FileFormat, Row
from .spans import CharacterSpan

_SLOT = re.compile(r"\[([^\[\]:]+?)\s*:\s*([^\[\]]+?)\]")  # MASSIVE: [time : nine]
_ENTITY = re.compile(
    r"\[([^\[\]]+)\](?:\(([^()\s][^()]*)\)|(\{[^{}]*\}))"
)  # Rasa: [lima](city), [lima]{"entity": "city"}


# Markup that no reader takes: XML and ENAMEX, Bot Framework's {city=lima}, Alexa's {lima|city}, TOP's [SL:CITY lima ]
_OTHER = re.compile(
    r"<([A-Za-z][\w.-]*)(?:\s[^<>]*)?>[^<>]*</\1>|\{@?[\w.:]+=[^{}]*\}|\{[^{}|=]+\|[^{}|=]+\}|\[(?:IN|SL):\w+[ \]]"
)


def other_markup_in(text: str) -> str | None:
    """Return the first tag of a markup that is not read: XML, braces, or brackets of TOP; None without one."""
    found = _OTHER.search(text)
    return found and found[0]


def markup_in(text: str) -> str | None:
    """Return the first tag in brackets of Rasa's or MASSIVE's markup; None without one."""
    found = _ENTITY.search(text) or _SLOT.search(text)
    return found and found[0]


def markup_of(where: str, marked: str, plain: str | None) -> tuple[str, list[CharacterSpan]]:
    """Return a text and its spans of Rasa's or MASSIVE's markup; CorpusError if the text is not `plain`."""
    if plain is None and _ENTITY.search(marked):
        if colon := next((match[0] for match in _ENTITY.finditer(marked) if ":" in (match[2] or "")), None):
            raise CorpusError(
                f"{where}: in {colon!r} a part of the label, or a value as of Rasa, is after the colon; write "
                "[words](label) without a colon"
            )
        example = _rasa_example(where, marked)
        return example["text"], example["spans"]
    text, spans = _without_markup(marked, _SLOT, lambda match: (match[2], match[1]))
    if "[" in text or "]" in text:
        raise CorpusError(f"{where}: a bracket without [type : words] in {marked[:60]!r}; correct it")
    if plain is not None and text.split() != plain.split():
        raise CorpusError(f"{where}: annot_utt without its brackets is {text!r}, and utt is {plain!r}; correct one")
    return text, spans


def _without_markup(marked: str, pattern: re.Pattern, words_and_label) -> tuple[str, list[CharacterSpan]]:
    text, spans, place = "", [], 0
    for match in pattern.finditer(marked):
        words, label = words_and_label(match)
        text += marked[place : match.start()]
        spans.append(CharacterSpan(len(text), len(text) + len(words), (" ".join(label.split()),), words))
        text += words
        place = match.end()
    return text + marked[place:], spans


def _rasa_rows(path: Path, choices: Choices, account: Account) -> list[Row]:
    """Return the examples of the intents in Rasa's training data, with their entities."""
    from bttlab.util.yaml_files import read_yaml

    value = read_yaml(path)
    if not isinstance(value, dict) or not isinstance(value.get("nlu"), list):
        raise CorpusError(f"{path}: no list of examples at nlu, as training data of Rasa has")
    for key in value:
        if key not in ("nlu", *RASA.unused):
            raise CorpusError(f"{path}: almost training data of Rasa; left over: {key}; remove it")
        if key not in ("nlu", "version"):
            account.unused[key] = RASA.unused[key]
    rows = []
    for number, part in enumerate(value["nlu"], 1):
        where = f"{path}, nlu {number}"
        if not isinstance(part, dict):
            raise CorpusError(f"{where}: {part!r} is not a table with an intent and examples")
        if kind := next((name for name in ("synonym", "regex", "lookup") if name in part), None):
            account.unused[f"{kind} {part[kind]}"] = RASA.unused[kind]
            continue
        if left := sorted(set(map(str, part)) - {"intent", "examples", "metadata"}):
            raise CorpusError(f"{where}: almost an intent of Rasa; left over: {', '.join(left)}; remove it")
        if "metadata" in part:
            account.unused["metadata"] = RASA.unused["metadata"]
        if not isinstance(part.get("intent"), str):
            raise CorpusError(f"{where}: no intent; name it")
        for count, (text, metadata) in enumerate(_examples(where, part.get("examples")), 1):
            if metadata:
                account.unused["metadata"] = RASA.unused["metadata"]
            place = f"{where}, example {count}"
            rows.append(Row(place, _rasa_example(place, text) | {"label": part["intent"]}))
    account.used |= RASA.used
    return rows


def _examples(where: str, examples: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(examples, list):
        for item in examples:
            if not isinstance(item, dict) or not isinstance(item.get("text"), str) or set(item) - {"text", "metadata"}:
                raise CorpusError(f"{where}: {str(item)[:60]!r} is not an example with a text")
            yield item["text"].strip().removeprefix("- "), item.get("metadata")
    elif isinstance(examples, str):
        for line in examples.split("\n"):
            if line.strip():
                if not line.strip().startswith("-"):
                    raise CorpusError(f"{where}: the example {line.strip()[:60]!r} does not begin with -; correct it")
                yield line.strip()[1:].strip(), None
    else:
        raise CorpusError(f"{where}: no examples; write them, or remove the intent")


def _rasa_example(where: str, marked: str) -> dict[str, Any]:
    from .files import parse_json

    def words_and_label(match: re.Match) -> tuple[str, str]:
        if match[2] is not None:
            entity, colon, value = match[2].partition(":")  # [lima](city:Lima), with the value of a synonym
            if colon and not (entity.strip() and value.strip()):
                raise CorpusError(f"{where}: {match[0]!r} lacks the entity or its value; write [words](entity)")
            return match[1], entity
        about = parse_json(where, match[3])
        if left := sorted(set(about) - {"entity", "value"}):
            raise CorpusError(
                f"{where}: {match[0]!r} has the keys {', '.join(left)}, which a tag has no place for; make them part "
                "of the entity"
            )
        if not isinstance(about.get("entity"), str):
            raise CorpusError(f"{where}: {match[0]!r} names no entity")
        return match[1], about["entity"]

    text, spans = _without_markup(marked, _ENTITY, words_and_label)
    if re.search(r"\][({]|[\[\]]", text):
        raise CorpusError(f"{where}: a bracket that is no entity in {marked[:60]!r}; write [words](entity)")
    return {"text": text, "spans": spans}


_DIALOGUES = "stories rules e2e_actions intents entities slots forms actions responses session_config config".split()
RASA = FileFormat(
    "Rasa YAML",
    (".yml", ".yaml"),
    used={"intent": "intent", "examples": "text with tags in brackets"},
    unused={
        "version": "of the format",
        **dict.fromkeys(("synonym", "regex", "lookup"), "of Rasa's own features"),
        "metadata": "the tool's own",
        **dict.fromkeys(_DIALOGUES, "of Rasa's dialogues"),
    },
    accepted='`[words](entity)`, `[words](entity:value)` and `[words]{"entity": …}` in examples',
    refused="roles and groups",
    rows=_rasa_rows,
)


def _brat_rows(folder: Path, choices: Choices, account: Account) -> list[Row]:
    """Return the lines of the texts in a folder of brat, with the spans (T) of the .ann file of the same name."""
    rows = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        if path.suffix in (".conf", ".ini") or path.name.startswith("."):
            account.unused[path.name] = BRAT.unused[".conf"]
        elif path.suffix not in (".txt", ".ann") or not path.with_suffix(".txt").is_file():
            raise CorpusError(f"{path}: neither a .txt file nor the .ann of one; move it out of {folder}")
        elif path.suffix == ".txt":
            if not path.with_suffix(".ann").is_file():
                raise CorpusError(f"{path}: no .ann file beside it; a text without annotations has an empty one")
            rows += _brat_lines(path, account)
    account.used |= BRAT.used
    return rows


def _brat_lines(path: Path, account: Account) -> list[Row]:
    text = read_text(path, CorpusError)
    annotations = path.with_suffix(".ann")
    spans: list[tuple[str, CharacterSpan]] = []
    for number, line in enumerate(read_text(annotations, CorpusError).split("\n"), 1):
        where = f"{annotations}, line {number}"
        if not line.strip():
            continue
        id_, *fields = line.split("\t")
        if not id_.startswith("T"):
            if id_[:1] not in BRAT.unused:
                raise CorpusError(f"{where}: {id_!r} is no annotation of brat; correct it")
            account.skipped[BRAT.unused[id_[0]]] += 1
            continue
        match = re.fullmatch(r"(\S+) (\d+ \d+(?:;\d+ \d+)*)", fields[0]) if len(fields) == 2 else None
        if match is None:
            raise CorpusError(
                f"{where}: not a span of brat: an id, a label with offsets, and the text, separated by tabs"
            )
        parts = [tuple(map(int, part.split())) for part in match[2].split(";")]
        covered = " ".join(text[start:end] for start, end in parts)
        if covered.split() != fields[1].split():
            raise CorpusError(
                f"{where}: the offsets give {covered!r}, and the text is {fields[1]!r}; correct the offsets"
            )
        of = tuple((start, end) for start, end in parts) if len(parts) > 1 else ()
        spans.append((where, CharacterSpan(parts[0][0], parts[-1][1], (match[1],), None if of else covered, None, of)))
    rows, place = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        end = place + len(line)
        here = [(where, span) for where, span in spans if place <= span.start <= end]
        for where, span in here:
            if span.end > end:
                raise CorpusError(f"{where}: the span goes over the end of a line, which is an utterance; split it")
        if line.strip():
            moved = [
                CharacterSpan(
                    s.start - place,
                    s.end - place,
                    s.labels,
                    s.text,
                    None,
                    tuple((a - place, b - place) for a, b in s.parts),
                )
                for _, s in here
            ]
            rows.append(Row(f"{path}, line {number}", {"text": line, "spans": moved}))
        elif here:
            raise CorpusError(f"{here[0][0]}: the span is in an empty line; correct it")
        place = end + 1
    if late := [where for where, span in spans if span.start >= place]:
        raise CorpusError(f"{late[0]}: the span is not within the text; correct it")
    return rows


BRAT = FileFormat(
    "brat standoff",
    used={".txt": "text, an utterance in each line", "T": "spans"},
    unused={
        "R": "relations", "E": "events", "A": "attributes", "M": "attributes", "N": "normalizations", "#": "notes",
        "*": "equivalences", ".conf": "settings of brat", ".ini": "settings of brat",
    },
    accepted="a folder with `.txt` and `.ann` files; the text must be that of the offsets",
    refused="spans over the end of a line; a text without its `.ann` file; other files",
    rows=_brat_rows,
)  # fmt: skip


# --- spaCy's DocBin: msgpack, compressed by zlib. spaCy 3.8 needs NumPy 2, which the card's driver does not take.

_ORTH, _ENT_IOB, _ENT_TYPE, _SENT_START, _SPACY = 65, 77, 78, 80, 62  # numbers of attributes, of spacy/attrs.pxd


def _docbin_rows(path: Path, choices: Choices, account: Account) -> list[Row]:
    """Return the documents of a .spacy file: words, entities, and categories with the value 1."""
    import msgpack

    try:
        inflated = zlib.decompressobj().decompress(read_bytes(path), MOST_BYTES)
        content = msgpack.unpackb(inflated, strict_map_key=False)
        attributes, strings = content["attrs"], content["strings"]
        width = len(attributes)
        tokens = struct.unpack(f"<{len(content['tokens']) // 8}Q", content["tokens"])
        lengths = struct.unpack(f"<{len(content['lengths']) // 4}i", content["lengths"])
        spaces, categories = content["spaces"], content["cats"]
        groups = content.get("span_groups") or []
    except OSError as error:
        raise CorpusError(f"{path} cannot be read ({error.strerror})") from None
    except (zlib.error, ValueError, TypeError, KeyError, struct.error, msgpack.UnpackException) as error:
        raise CorpusError(f"{path} is not a DocBin of spaCy ({type(error).__name__})") from None
    if sum(lengths) * width != len(tokens) or len(spaces) != sum(lengths) or len(categories) != len(lengths):
        raise CorpusError(f"{path}: the lengths of its documents and its tokens do not agree; write it again")
    names = {string_id(name): name for name in strings} | {0: ""}
    place = {attribute: column for column, attribute in enumerate(attributes)}
    if not {_ORTH, _ENT_IOB, _ENT_TYPE} <= set(place):
        raise CorpusError(f"{path}: no words or entities among its attributes; write it with DocBin()")
    has_groups = any(len(group) > 1 for group in groups)
    if has_groups:
        account.unused["spans"] = DOCBIN.unused["spans"]
    account.unused["other attributes"] = DOCBIN.unused["other attributes"]
    has_categories = any(categories)
    account.used |= {name: what for name, what in DOCBIN.used.items() if name != "cats" or has_categories}
    iob = tokens[place[_ENT_IOB] :: width]
    if any(iob) and 0 in iob:
        raise CorpusError(
            f"{path}: the entities of word {iob.index(0) + 1:,} are missing, and those of others are not; set doc.ents "
            "in each document, to [] where there are none"
        )
    if has_groups and not has_categories and not any(tokens[place[_ENT_TYPE] :: width]):
        raise CorpusError(
            f"{path}: neither entities nor categories, and span groups, which are not read; set doc.ents to the spans "
            "of a group"
        )
    rows, begin = [], 0
    for number, (length, cats) in enumerate(zip(lengths, categories, strict=True), 1):
        where = f"{path}, document {number}"
        words, tags = [], []
        for token in range(begin, begin + length):
            values = tokens[token * width : (token + 1) * width]
            try:
                word, kind = names[values[place[_ORTH]]], names[values[place[_ENT_TYPE]]]
            except KeyError as error:
                raise CorpusError(f"{where}: the string {error} is not in the file; write it again") from None
            letter = {3: "B", 1: "I"}.get(values[place[_ENT_IOB]], OUTSIDE)  # and 0 missing, 2 O
            if not word.strip():
                account.left_out["tokens of spaces"] += 1
                continue
            words.append(word)
            tags.append(OUTSIDE if letter == OUTSIDE or not kind else f"{letter}-{'_'.join(kind.split())}")
        begin += length
        row: dict[str, Any] = {"words": words} | ({"tags": tags} if any(iob) else {})
        if has_categories:
            row["cats"] = cats
        rows.append(Row(where, row))
    return rows


def string_id(text: str) -> int:
    """Return spaCy's number of a string: MurmurHash64A of its UTF-8, seed 1; 0 of an empty one."""
    data = text.encode()
    if not data:
        return 0
    mask, m = (1 << 64) - 1, 0xC6A4A7935BD1E995
    value = 1 ^ (len(data) * m & mask)
    whole = len(data) // 8 * 8
    for (block,) in struct.iter_unpack("<Q", data[:whole]):
        block = block * m & mask
        block = (block ^ block >> 47) * m & mask
        value = (value ^ block) * m & mask
    if rest := data[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * m & mask
    value = (value ^ value >> 47) * m & mask
    return value ^ value >> 47


DOCBIN = FileFormat(
    "spaCy's DocBin",
    (".spacy",),
    used={"ORTH": "words", "ENT_TYPE": "tags", "cats": "intent"},
    unused={"spans": "span groups; doc.ents has the spans that are read", "other attributes": "of the syntax"},
    accepted="categories with 0 and 1",
    refused="categories with other scores; words whose entities nobody has set, beside others; span groups without "
    "entities or categories",
    rows=_docbin_rows,
)
