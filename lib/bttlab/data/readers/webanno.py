"""WebAnno TSV 3, as WebAnno and INCEpTION export it."""

import re
from pathlib import Path
from typing import Any

from bttlab.util.reading import read_text

from ..corpus import OUTSIDE, CorpusError
from ..label_names import label_name
from .account import NO_RELATIONS, Account, Choices, FileFormat, Row
from .columns import Line
from .spans import CharacterSpan, one_label, without_overlaps

_NOTHING = re.compile(r"_?|\*(\[\d+\])?(\|\*(\[\d+\])?)*")  # cells of a feature without a value, such as *[1]|*[2]


def _webanno_rows(path: Path, choices: Choices, account: Account) -> list[Row]:
    """Return the sentences of WebAnno TSV 3, as INCEpTION exports it, with the spans of one feature of one layer."""
    text = [line.rstrip("\r") for line in read_text(path, CorpusError).split("\n")]
    if not text[0].startswith("#FORMAT=WebAnno TSV 3"):
        raise CorpusError(f"{path}, line 1: {text[0]!r} is not WebAnno TSV 3; export TSV 3 or CoNLL 2002")
    account.reader = text[0].removeprefix("#FORMAT=")
    layers: list[tuple[str, str]] = []  # kind and name of each column of annotations
    sentences: list[tuple[str, str, list[Line]]] = []
    for number, line in enumerate(text[1:], 2):
        where = f"{path}, line {number}"
        if line.startswith("#T_"):
            kind, _, layer = line[3:].partition("=")
            layer, *features = layer.split("|")
            short = layer.rpartition(".")[2]
            layers += [(kind, f"{short}.{feature}" if feature else short) for feature in features or [""]]
        elif line.startswith("#Text="):
            before = sentences[-1] if sentences and not sentences[-1][2] else None
            part = _unescaped(line.removeprefix("#Text="))
            if before:  # a sentence of several lines
                sentences[-1] = (before[0], f"{before[1]}\n{part}", [])
            else:
                sentences.append((where, part, []))
        elif line.startswith("#"):
            account.skipped["comment"] += 1
        elif line.strip():
            if not sentences:
                raise CorpusError(f"{where}: a token before the first #Text=; export the file again")
            sentences[-1][2].append(Line(where, line.rstrip("\t").split("\t") if not layers else line.split("\t")))
    spans = [name for kind, name in layers if kind == "SP"]
    unknown = sorted((set(choices.ignore) | {choices.tags or (spans or [""])[0]}) - {name for _, name in layers})
    if unknown or choices.text or choices.label:
        raise CorpusError(
            f"{path}: the layers are {', '.join(name for _, name in layers) or 'none'}; name one with --tags"
        )
    cells = {
        name: [line.columns[3 + place] for _, _, lines in sentences for line in lines if len(line.columns) > 3 + place]
        for place, (_, name) in enumerate(layers)
    }
    filled = [
        name for _, name in layers if name not in choices.ignore and not all(map(_NOTHING.fullmatch, cells[name]))
    ]
    relations = [name for kind, name in layers if kind != "SP"]
    chosen = choices.tags or next((name for name in filled if name not in relations), spans[0] if spans else "")
    for name in dict.fromkeys(name for _, name in layers):
        if name in choices.ignore:
            account.unused[name] = "--ignore"
        elif name not in filled and name != chosen:
            account.unused[name] = "empty"
        elif name in relations:
            account.unused[name] = WEBANNO.unused["#T_RL"]
        elif name != chosen:
            raise CorpusError(
                f"{path}: {chosen!r} and {name!r} both have labels; choose with --tags, and --ignore the other"
            )
    if not chosen:
        raise CorpusError(f"{path}: no layer of spans; export one")
    account.used |= {"#Text": WEBANNO.used["#Text"], chosen: WEBANNO.used["#T_SP"]}
    column = 3 + [name for _, name in layers].index(chosen)
    ids: set[str] = set()  # of the spans of earlier sentences: the document numbers them
    return [
        Row(where, _webanno_sentence(where, text, lines, column, ids, choices, account))
        for where, text, lines in sentences
    ]


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"t": "\t", "n": "\n", "r": "\r"}.get(match[1], match[1]), text)


def _webanno_sentence(
    where: str, text: str, lines: list[Line], column: int, ids: set[str], choices: Choices, account: Account
) -> dict[str, Any]:
    if not lines:
        raise CorpusError(f"{where}: a sentence without tokens; export the file again")
    words, cells, offset = [], [], 0
    begin = None  # UTF-16 offset of the sentence in the document
    units = text.encode("utf-16-le", "surrogatepass")
    for line in lines:
        id_, _, rest = line.columns[0].partition("-")
        if not id_.isdigit() or len(line.columns) <= column:
            raise CorpusError(
                f"{line.where}: {len(line.columns)} columns, but the header names {column + 1}; export it again"
            )
        first, _, last = line.columns[1].partition("-")
        if not first.isdigit() or not last.isdigit():
            raise CorpusError(f"{line.where}: {line.columns[1]!r} is not a token's place; export the file again")
        begin = int(first) if begin is None else begin
        word = _unescaped(line.columns[2])
        if "." in rest:
            if line.columns[column] not in ("_", ""):
                raise CorpusError(
                    f"{line.where}: {word!r} is a part of a word with a label of its own; give the word the label"
                )
            account.skipped["parts of a word without a label"] += 1
            continue
        place = units[2 * (int(first) - begin) : 2 * (int(last) - begin)].decode("utf-16-le", "replace")
        at = text.find(word, offset)
        if place != word or at < 0:
            raise CorpusError(
                f"{line.where}: the token {word!r} is not at {line.columns[1]} of #Text; export the file again"
            )
        if text[offset:at].strip():
            raise CorpusError(f"{line.where}: {text[offset:at].strip()!r} of #Text is no token; export the file again")
        offset = at + len(word)
        words.append(word)
        cells.append((line.where, line.columns[column]))
    if text[offset:].strip():
        raise CorpusError(f"{where}: {text[offset:].strip()!r} of #Text is no token; export the file again")
    return {"words": words, "tags": _webanno_tags(cells, ids, choices, account)}


def _webanno_tags(cells: list[tuple[str, str]], ids: set[str], choices: Choices, account: Account) -> list[str]:
    """Return BIO tags of cells such as `city`, `city[1]|date[2]` and `_`; add the ids of their spans to `ids`."""
    spans: dict[str, CharacterSpan] = {}
    for place, (where, cell) in enumerate(cells):
        if cell in ("_", ""):
            continue
        for number, part in enumerate(re.split(r"(?<!\\)\|", cell)):
            match = re.fullmatch(r"(.*?)(?:\[(\d+)\])?", part)
            label, id_ = (match[1], match[2]) if match else (part, None)
            label = " ".join(_unescaped(label).split())
            if label in ("_", "*", ""):
                raise CorpusError(f"{where}: an annotation without a label; give it one")
            if id_ in ids:
                raise CorpusError(
                    f"{where}: the span [{id_}] goes on from an earlier sentence, which is an utterance; split it"
                )
            key = id_ or f"{place}, {number}"
            before = spans.get(key)
            if before and (before.end != place or before.labels != (label,)):
                raise CorpusError(f"{where}: the span [{id_}] has a gap, or two labels; correct it")
            spans[key] = CharacterSpan(before.start if before else place, place + 1, (label,))
            account.spell("slot", label)
    where = cells[0][0]
    ids.update(key for key in spans if key.isdigit())
    kept = [one_label(where, span, choices.overlaps, account.left_out) for span in spans.values()]
    tags = [OUTSIDE] * len(cells)
    for span in without_overlaps(where, kept, choices.overlaps, account.left_out):
        for place in range(span.start, span.end):
            tags[place] = f"{'B' if place == span.start else 'I'}-{label_name(span.labels[0])}"
    return tags


WEBANNO = FileFormat(
    "WebAnno TSV 3",
    (".tsv", ".conll"),
    "#FORMAT=WebAnno",
    used={"#T_SP": "tags", "#Text": "text, compared with the tokens"},
    unused={
        **dict.fromkeys(("#T_RL", "#T_CH"), NO_RELATIONS),
        "other comments": "of the document",
    },
    accepted="a feature of a layer of spans, `--tags LAYER.FEATURE`",
    refused="labels of parts of words; spans over several sentences; several filled layers",
    rows=_webanno_rows,
    has_columns=True,
)
