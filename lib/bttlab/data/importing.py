"""Import utterances into a corpus in the common layout: match a file with the declared readers, and account for it.

docs/import.md has the table of what is accepted.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bttlab.util.reading import read_text

from .corpus import OUTSIDE, PAD, SPLIT_NAMES, UNK, CorpusError, Split, files_of
from .label_names import label_name
from .readers.account import NO_PIECE, Account, Choices, FileFormat, Row
from .readers.columns import COLUMNS, TOKEN_TABLE, grouped_tokens
from .readers.files import JSON, PARQUET, TABLE, json_lines, parquet_rows, parse_json, table_rows
from .readers.formats import READERS, Reader
from .readers.rows import NO_INTENT, PREPARED, TAG_LIKE, Utterance, utterances_of
from .readers.spans import EMPTY, CharacterSpan, chosen_offsets, one_label, tags_of, without_overlaps
from .readers.tools import BRAT, DOCBIN, RASA
from .readers.webanno import WEBANNO
from .spans import slots_of
from .tag_schemes import to_bio
from .tokenizer import Piece, Tokenizer
from .unify import several_of

_MARKS = ("BOS", "[CLS]", "<s>")  # before the words of an utterance, in files that were prepared for a model
SHOWN_LABELS = 5  # in a note
PART = 0.1  # share of the utterances in dev, and in test, if they have no file of their own
_LANGUAGE = re.compile("[a-z]{2,3}:")  # before each word of WikiANN
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u200b\u2060\ufeff\ud800-\udfff]"
)  # joiners are letters' in some scripts


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


def _found(path: Path, choices: Choices, account: Account) -> tuple[list[Utterance], Choices]:
    suffix = path.suffix.lower()
    if path.is_dir():
        return _prepared(BRAT if any(path.rglob("*.ann")) else TEXTS, path, choices, account)
    if suffix not in SUFFIXES:
        raise CorpusError(
            f"{path}: its suffix is unknown; use {', '.join(SUFFIXES)}, or a folder with a subfolder of .txt files for "
            "each label"
        )
    formats = SUFFIXES[suffix]
    begins = [form for form in formats if form.begins and read_text(path, CorpusError).startswith(form.begins)]
    form = (begins or formats)[0]
    return _prepared(form, path, choices, account) if form.rows else _CONTAINERS[form.title](path, choices, account)


def _prepared(form: FileFormat, path: Path, choices: Choices, account: Account) -> tuple[list[Utterance], Choices]:
    assert form.rows
    account.reader = form.title
    rows, used = form.rows(path, choices, account), choices
    if form.has_columns:  # it has read the user's columns
        used = replace(choices, text=None, label=None, tags=None, ignore=frozenset())
    return utterances_of(rows, PREPARED, used, account, {}), choices


def _table(path: Path, choices: Choices, account: Account):
    rows = list(table_rows(path, account))
    if rows and (grouped := grouped_tokens(rows, account)):
        return utterances_of(grouped, PREPARED, choices, account, {}), choices
    account.reader = f"a table ({path.suffix.lower()})"
    reader, rows = _matched([(row.where, row.values) for row in rows], "", account)
    return utterances_of(rows, reader, choices, account, {}), choices


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
    features: Any = top.get("features")
    if isinstance(features, list):  # of the dataset server
        features = {feature.get("name"): feature.get("type") for feature in features if isinstance(feature, dict)}
    return utterances_of(rows, reader, choices, account, _class_names(features or {})), choices


def _parquet(path: Path, choices: Choices, account: Account):
    values, features = parquet_rows(path)
    reader, rows = _matched([(f"{path}, row {n}", value) for n, value in enumerate(values, 1)], "", account)
    account.reader = f"parquet of {reader.title}"
    return utterances_of(rows, reader, choices, account, _class_names(features)), choices


_CONTAINERS: dict[str, Callable[[Path, Choices, Account], tuple[list[Utterance], Choices]]] = {
    TABLE.title: _table,
    JSON.title: _json,
    PARQUET.title: _parquet,
}


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
    rows = []
    for where, value in values:
        beside = {name: item for name, item in value.items() if name not in reader.needs}  # to be accounted for, too
        rows += [Row(place, beside | row) for place, row in reader.convert(where, value, account)]
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


def _check_words(found: list[Utterance]) -> None:
    words = [word for item in found if item.tags is not None for word in item.words]
    if words and all(map(TAG_LIKE.fullmatch, words)):
        raise CorpusError(f"{found[0].where}: all words in {found[0].column!r} are tags; choose the columns")
    if all(item.words and item.words[0] in _MARKS for item in found):
        raise CorpusError(
            f"{found[0].where}: every utterance begins with {found[0].words[0]!r}, a mark; remove the marks"
        )
    prefixes = {match[0] if (match := _LANGUAGE.match(word)) else "" for word in words}
    if len(prefixes) == 1 and prefixes != {""} and len(set(words)) > 1:
        raise CorpusError(f"{found[0].where}: every word begins with {prefixes.pop()!r}; take it out")
    intents = {item.intent for item in found}
    for item in found:
        several = [part.strip() for part in re.split("[,;|]", item.intent)]
        if len(several) > 1 and set(several) <= intents:
            raise CorpusError(
                f"{item.where}: the label {item.intent!r} may be several, which other lines have alone; write # between"
            )
    if "O" in intents and any(intent[:2] in ("B-", "I-", "S-", "U-") for intent in intents):
        raise CorpusError(f"{found[0].where}: the labels are tags of words; name their column with --tags")
    if len(found) > 1 and all(item.tags is not None and len(item.words) == 1 for item in found):
        raise CorpusError(
            f"{found[0].where}: every utterance has one word: a token in each row, or a sentence in a line; write an "
            "utterance in each row, or a .conll file with an empty line after each utterance"
        )


def _split_of(found: list[Utterance], choices: Choices, account: Account) -> Split:
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
        intent = label_name(item.intent)
        account.spell("intent", item.intent)
        for span in item.spans or []:
            for label in span.labels:
                account.spell("slot", label)
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
    account.several = several_of(split)
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
    if letters := sum(map(str.isalnum, rest)):
        counts[NO_PIECE] += letters
    counts["punctuation left out"] += len(rest) - spaces - letters


def _texts(folder: Path, choices: Choices, account: Account) -> list[Row]:
    rows = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        if path.suffix != ".txt" or path.parent.parent != folder:
            raise CorpusError(f"{path}: not a .txt file in the folder of a label; move it out of {folder}")
        rows.append(Row(str(path), {"text": read_text(path, CorpusError), "label": path.parent.name}))
    account.used |= TEXTS.used
    return rows


TEXTS = FileFormat(
    "a folder with a text for each utterance",
    used={"the name of a subfolder": "intent", "a `.txt` file in it": "text"},
    refused="other files",
    rows=_texts,
)
FILE_FORMATS = (TABLE, TOKEN_TABLE, JSON, PARQUET, COLUMNS, WEBANNO, RASA, DOCBIN, BRAT, TEXTS)
SUFFIXES = {
    suffix: tuple(form for form in FILE_FORMATS if suffix in form.suffixes and form is not TOKEN_TABLE)
    for suffix in dict.fromkeys(suffix for form in FILE_FORMATS for suffix in form.suffixes)
}


# --- corpora


def check_alike(read: Mapping[str, tuple[Split, Account]]) -> None:
    """Raise CorpusError if the file of one split has tags, or intents, and that of another has none."""
    (train, of_train), rest = read["train"], {name: of for name, of in read.items() if name != "train"}
    for name, (split, account) in rest.items():
        for what, option, here, there in (
            ("tags", "--tags", _has_tags(train), _has_tags(split)),
            ("intents", "--label", _has_intents(train), _has_intents(split)),
        ):
            if here != there:
                having, lacking = (of_train, account) if here else (account, of_train)
                raise CorpusError(
                    f"{lacking.file} has no {what}, and {having.file} has some: scores of {name} would say nothing; "
                    f"name the column with {option}, or leave --{name} out"
                )


def _has_tags(split: Split) -> bool:
    return any(tag not in (OUTSIDE, PAD) for tags in split.slots for tag in tags)


def _has_intents(split: Split) -> bool:
    return set(split.intents) != {NO_INTENT}


def unknown_to_train(splits: Mapping[str, Split]) -> list[str]:
    """Return a note for each of dev and test that has labels which train lacks."""
    train, notes = _labels(splits["train"]), []
    for name in SPLIT_NAMES[1:]:
        if unknown := sorted(_labels(splits[name]) - train):
            told = ", ".join(f"{kind} {label}" for kind, label in unknown[:SHOWN_LABELS])
            more = f", … {len(unknown)} in all" * (len(unknown) > SHOWN_LABELS)
            notes.append(f"labels of {name} that train lacks, so no model predicts them: {told}{more}")
    return notes


def _labels(split: Split) -> set[tuple[str, str]]:
    slots = {("slot", tag[2:]) for tags in split.slots for tag in tags if tag not in (OUTSIDE, PAD)}
    return slots | {("intent", intent) for intent in split.intents}


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
