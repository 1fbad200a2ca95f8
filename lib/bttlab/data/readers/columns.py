"""Files with a word in each line: CoNLL's formats, and tables with a token in each row."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bttlab.util.reading import read_text

from ..corpus import OUTSIDE, CorpusError
from ..tag_schemes import to_bio
from .account import Account, Choices, FileFormat, Row

_INTENT = re.compile(r"#\s*(?:intent|label)\s*[:=](.*)")
_TAG = re.compile(r"[oO0]|[BIESLUMW][-_].+|.+[-_][BIESLUMW]", re.IGNORECASE)
_PREFIXED = re.compile(r"[BIESLUMW][-_].+")
_BRACKETS = re.compile(r"\*\)?|\(\w+[*)]")  # (GPE* … *) of CoNLL-2012
_HEADER = (
    {"word", "words", "token", "tokens", "form", "text"},
    {"tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags"},
)
_ID = re.compile(r"\d+([-.]\d+)?")
_CONLLU = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC".split()
_NO_TAG = ("O", "o", "_", "*", "-")  # in the line of a range or an empty node
_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split()
_PENN = (
    "CC CD DT EX FW IN JJ JJR JJS LS MD NN NNS NNP NNPS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH VB VBD VBG VBN VBP "
    "VBZ WDT WP WP$ WRB"
).split()
# Types of phrases in the third column of CoNLL-2003, the tags of CoNLL-2000's task
_PHRASES = {"NP", "VP", "PP", "ADJP", "ADVP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP"}
TOKEN_TABLE = FileFormat(
    "a table with a token in each row",
    (".csv", ".tsv"),
    used={"Sentence #": "the sentence", "Word": "words", "Tag": "tags"},
    unused={"POS": "of the syntax", "": "row numbers"},
    accepted="`Sentence #` in the first row of each sentence, or in all",
    refused="a sentence in two places; other tables with one word in each row",
)


@dataclass(frozen=True)
class Line:
    where: str
    columns: list[str]


@dataclass
class _Block:
    """An utterance: its intent, and its words' lines."""

    intent: str | None
    lines: list[Line]

    def column(self, place: int) -> list[str]:
        return [line.columns[place] for line in self.lines]


def _column_rows(path: Path, choices: Choices, account: Account) -> list[Row]:
    """Return the utterances of a CoNLL file. Columns are named by their number from 1, or by CoNLL-U's names.

    Raises CorpusError if a column between word and tag has tags, too, or it is not known which has what.
    """
    names, blocks, has_gap = _blocks(path, account)
    no_words: list[Line] = []  # of CoNLL-U
    if not blocks:
        return []
    count = len(blocks[0].lines[0].columns)
    if names is None and count == 10 and all(_is_conllu(block) for block in blocks):
        names = _CONLLU
    account.reader = "CoNLL-U" if names else f"CoNLL with {count} columns"
    if names is not None and len(names) != count:
        raise CorpusError(f"{path}: global.columns names {len(names)} columns, the lines have {count}; correct it")
    names = names or [str(number) for number in range(1, count + 1)]
    if "FORM" in names:
        _check_conllu(list(names), blocks)
        blocks, no_words = _surface(blocks, account)
    place = {name: number for number, name in enumerate(names)}
    for option, name in (("--text", choices.text), ("--label", choices.label), ("--tags", choices.tags)):
        if name is not None and name not in place:
            raise CorpusError(f"{path}: no column {name!r}; {option} takes one of {', '.join(names)}")
    if wrong := sorted(set(choices.ignore) - set(names)):
        raise CorpusError(f"{path}: no column {wrong[0]!r} to ignore; there are {', '.join(names)}")
    word, tag, label = _meanings(path, list(names), blocks, choices, account)
    is_misc = names[tag] == "MISC"
    for line in no_words:
        value = line.columns[tag]
        if (lost := _of_misc(value) if is_misc else value) not in _NO_TAG:
            raise CorpusError(
                f"{line.where}: {line.columns[0]} is no word, and has the tag {lost}; give the tag to its words"
            )
    rows = []
    for block in blocks:
        first = block.lines[0].where
        for line in block.lines:
            for value in (line.columns[word], line.columns[tag]):
                if value.split() != [value]:
                    raise CorpusError(f"{line.where}: {value!r} is not one word or tag; write a word in each line")
        values: dict[str, Any] = {"words": block.column(word), "tags": block.column(tag)}
        if is_misc:
            values["tags"] = [_of_misc(value) for value in values["tags"]]
        if label is not None:
            of_words = set(block.column(label))
            if len(of_words) > 1:
                raise CorpusError(f"{first}: column {names[label]} has several labels in an utterance; it must be one")
            if block.intent is not None and of_words != {block.intent}:
                raise CorpusError(f"{first}: the comment says {block.intent!r}, column {names[label]} another intent")
            values["label"] = of_words.pop()
        else:
            values["label"] = block.intent or "none"
        rows.append(Row(first, values))
    if not has_gap and (count := len(blocks[0].lines)) > 1:
        to_bio([(rows[0].where, rows[0].values["tags"])])  # whether they are tags at all
        raise CorpusError(f"{path}: no empty line: all {count} words would be one utterance; put one after each")
    return rows


def _meanings(
    path: Path, names: list[str], blocks: list[_Block], choices: Choices, account: Account
) -> tuple[int, int, int | None]:
    """Return the places of the columns with words, tags and intents."""
    values = [[value for block in blocks for value in block.column(place)] for place in range(len(names))]
    place = {name: number for number, name in enumerate(names)}
    first, word = blocks[0].lines[0].where, 0
    while choices.text is None and word + 2 < len(names) and _is_id(blocks, word):
        word += 1
    word = place[choices.text] if choices.text else place.get("FORM", word)
    tag = len(names) - 1
    label = place[choices.label] if choices.label else None
    with_tags = [number for number in range(len(names)) if _has_tags(values[number]) and number != label]
    has_misc = "MISC" in place and any(_tag_in_misc(value) for value in values[place["MISC"]])
    if choices.tags:
        tag = place[choices.tags]
        if choices.tags == "MISC" and not has_misc:
            raise CorpusError(f"{path}: no tags in MISC, as NER=B-city; write them, or name another column with --tags")
    elif "FORM" in place:
        added = [number for number, name in enumerate(names) if name not in _CONLLU and name not in choices.ignore]
        if not added and has_misc and "MISC" not in choices.ignore:
            added = [place["MISC"]]
        if len(added) != 1:
            which = ", ".join(names[number] for number in added) or "none"
            raise CorpusError(f"{path}: columns beside those of CoNLL-U: {which}; name the one with tags with --tags")
        tag = added[0]
    if with_tags and tag not in with_tags and not choices.tags and names[tag] != "MISC":
        others = ", ".join(names[number] for number in with_tags)
        one = all(len(set(block.column(tag))) == 1 for block in blocks)
        way_out = (
            f"--tags {names[with_tags[0]]} --label {names[tag]}"
            if one
            else f"name it with --tags {names[with_tags[0]]}"
        )
        raise CorpusError(
            f"{first}: tags are in column {others}, not in the last; {way_out}"
            + (f" --text {names[tag]}" if with_tags[0] == word and not one else "")
        )
    for number, name in enumerate(names):
        if any("(" in value for value in values[number]) and all(map(_BRACKETS.fullmatch, values[number])):
            raise CorpusError(f"{first}: column {name} has tags in brackets, as CoNLL-2012; write B-…, I-… and O")
    _check_header(blocks[0].lines[0], word, tag)
    for number in range(word):
        account.unused[names[number]] = "ids" if names[number] not in choices.ignore else "--ignore"
    for number, name in enumerate(names):
        if number in (word, tag, label) or number < word:
            continue
        if name in choices.ignore:
            account.unused[name] = "--ignore"
        elif number in with_tags and _are_phrases(values[number]) and number < tag:
            account.unused[name] = "phrases, as in CoNLL-2003"
        elif number in with_tags:
            raise CorpusError(
                f"{first}: columns {names[min(number, tag)]} and {names[max(number, tag)]} both have tags; "
                f"choose with --tags {name}, and leave the other out with --ignore (conlleval writes predictions last)"
            )
        elif (
            not any(map(str.isalnum, "".join(values[number]))) and "FORM" not in place and set(values[number]) != {"_"}
        ):
            raise CorpusError(
                f"{first}: column {name} has only {values[number][0]!r}: a sentence in a line; write "
                "a word and its tag in each line"
            )
        else:
            account.unused[name] = "of the syntax" if "FORM" in place else "neither words nor tags"
    if set(values[word]) <= {*_UPOS, *_PENN} or (word in with_tags and set(values[word]) != {"O"}):
        raise CorpusError(
            f"{first}: column {names[word]} has {values[word][0]!r} and others like it, no words; choose with --text"
        )
    if len({word, tag, label}) < 3:
        raise CorpusError(f"{path}: column {names[word]} cannot have both words and labels; name others")
    account.used |= {names[word]: "words", names[tag]: "tags"} | ({names[label]: "intent"} if label is not None else {})
    return word, tag, label


def _check_header(line: Line, word: int, tag: int) -> None:
    if line.columns[word].lower() in _HEADER[0] and line.columns[tag].lower() in _HEADER[1]:
        raise CorpusError(f"{line.where}: the names of columns, and not a word with its tag; remove the line")


def _has_tags(values: list[str]) -> bool:
    """Return True if a column may be labels of words: tags with prefixes or O, and not O alone in words."""
    distinct = set(values)
    if any(map(_PREFIXED.fullmatch, distinct)) or any("|" in value and _PREFIXED.match(value) for value in distinct):
        return all(_TAG.fullmatch(value) for value in distinct)
    return distinct == {"O"}


def _are_phrases(values: list[str]) -> bool:
    kinds = {value[2:] for value in values if value != "O"}
    return bool(kinds) and kinds <= _PHRASES


def _tag_in_misc(value: str) -> str | None:
    """Return the tag in a word's MISC of CoNLL-U, such as NER=B-PER, or Stanza's ner=S-PER; None without one."""
    parts = (part.partition("=") for part in value.split("|"))
    pairs = {key.lower(): tag for key, _, tag in parts}
    return pairs.get("ner", pairs.get("entity"))


def _of_misc(value: str) -> str:
    return _tag_in_misc(value) or OUTSIDE


def _is_conllu(block: _Block) -> bool:
    return all(
        _ID.fullmatch(line.columns[0]) and (line.columns[6] == "_" or line.columns[6].isdigit()) for line in block.lines
    )


def _surface(blocks: list[_Block], account: Account) -> tuple[list[_Block], list[Line]]:
    """Return the words of CoNLL-U, and the lines that are none: ranges (1-2) and empty nodes (1.1)."""
    found, no_words = [], []
    for block in blocks:
        words = [line for line in block.lines if line.columns[0].isdigit() or not _ID.fullmatch(line.columns[0])]
        for line in block.lines:
            if line not in words:
                no_words.append(line)
                account.skipped["ranges of words (1-2)" if "-" in line.columns[0] else "empty nodes (1.1)"] += 1
        found.append(_Block(block.intent, words))
    return found, no_words


def _blocks(path: Path, account: Account) -> tuple[list[str] | None, list[_Block], bool]:
    """Return the names of columns if the file has them, its utterances, and whether a line between is empty.

    Every line has the same number of columns.
    """
    text = [line.rstrip("\r") for line in read_text(path, CorpusError).split("\n")]
    plain = [line for line in text if line.strip() and not line.startswith(("#", "-DOCSTART-"))]
    separator = "\t" if any("\t" in line for line in plain) else "[ \t]+"
    lines = [[column.strip(" ") for column in re.split(separator, line.strip(" "))] for line in text]
    count = len(re.split(separator, plain[0].strip(" "))) if plain else 0
    tags = {re.split(separator, line.strip(" "))[-1] for line in plain}
    names, intent, comment = None, None, ""  # comment: where the last intent is
    found: list[_Block] = []
    block: list[Line] = []
    for number, (line, columns) in enumerate(zip([*text, ""], [*lines, []], strict=True), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            if block:
                found.append(_Block(intent, block))
                intent, block, comment = None, [], ""
        elif not block and (match := _INTENT.fullmatch(line)):
            if comment:
                raise CorpusError(f"{where}: a second intent before an utterance; leave one")
            intent, comment = match[1].strip() or None, where
        elif not block and line.startswith("# global.columns"):
            names = line.partition("=")[2].split()
        elif not block and (line.startswith("-DOCSTART-") or _is_comment(where, columns, count, tags)):
            kind = "-DOCSTART-" if line.startswith("-") else re.split(r"[=:\s]", line.lstrip("# \t"))[0][:20]
            account.skipped[f"comment {kind}".rstrip()] += 1
        elif line.startswith("-DOCSTART-"):
            raise CorpusError(f"{where}: -DOCSTART- within an utterance; put an empty line before it")
        elif len(columns) < 2:
            raise CorpusError(f"{where}: {columns[0]!r} has no tag; write it after the word")
        elif len(columns) != count:
            raise CorpusError(f"{where}: {len(columns)} columns, but the first word has {count}; make them equal")
        else:
            block.append(Line(where, columns))
    if comment:
        raise CorpusError(f"{comment}: an intent without an utterance after it; remove it")
    last = max((number for number, line in enumerate(text) if line.strip()), default=0)
    return names, found, len(found) > 1 or any(not line.strip() for line in text[last + 1 : -1])


def _is_comment(where: str, columns: list[str], count: int, tags: set[str]) -> bool:
    """Return True if a line before an utterance is a comment; a word may begin with #, or be #."""
    if not columns[0].startswith("#") or (len(columns) == count and columns[-1] in tags):
        return False
    if len(columns) == count and columns[0] != "#":
        if _TAG.fullmatch(columns[-1]):
            return False
        raise CorpusError(f"{where}: neither a comment nor a word with a tag that other words have; write '# ' first")
    return True


def _is_id(blocks: list[_Block], place: int) -> bool:
    """Return True if a column has ids: numbers that count the words, or a name with digits for each utterance."""
    values = [(line.where, line.columns[place]) for block in blocks for line in block.lines]
    if all(_ID.fullmatch(value) for _, value in values):
        for where, value in values:
            if not value.isdigit():
                raise CorpusError(f"{where}: {value} is the id of a token of several words; remove the line")
        return all(_counts(block.column(place)) for block in blocks)
    constant = all(len(set(block.column(place))) == 1 for block in blocks)
    has_digits = all(any(map(str.isdigit, value)) for _, value in values)
    return len(blocks) > 1 and len(values) > len(blocks) and constant and has_digits


def _counts(values: list[str]) -> bool:
    numbers = [int(value) for value in values if value.isdigit()]
    return all(after == before + 1 for before, after in itertools.pairwise(numbers))


def _check_conllu(names: list[str], blocks: list[_Block]) -> None:
    """Raise CorpusError unless CoNLL-U's columns have what its documentation says."""
    for block in blocks:
        for line in block.lines:
            values = dict(zip(names, line.columns, strict=True))
            if "ID" in values and not _ID.fullmatch(values["ID"]):
                raise CorpusError(f"{line.where}: {values['ID']!r} is in column ID, which has numbers; correct it")
            if values.get("UPOS", "_") not in (*_UPOS, "_"):
                raise CorpusError(f"{line.where}: {values['UPOS']!r} is in column UPOS, and is no part of speech of UD")


COLUMNS = FileFormat(
    "CoNLL",
    (".conll", ".bio", ".iob", ".conllu", ".conllup"),
    used={
        "a word in each line": "words",
        "its tag in the last column": "tags",
        "`# intent: NAME`": "intent",
        "`# global.columns`": "names of the columns",
        "`NER=` or `ner=` in MISC": "tags of CoNLL-U",
    },
    unused={
        "-DOCSTART-": "of the document",
        "other comments": "of the document",
        "ids before the words": "ids",
        "parts of speech and phrases of CoNLL-2003": "of the syntax",
        "other columns of CoNLL-U": "of the syntax",
        "ranges of words and empty nodes of CoNLL-U": "no words",
    },
    accepted="an empty line after each utterance; columns by number or name with `--text`, `--tags`, `--label`",
    refused="tags in two columns (GermEval, conlleval), or not in the last; a sentence in a line; no empty line; ids "
    "of several words (`1-2`) outside of CoNLL-U; several columns of CoNLL-U that may have tags; `-DOCSTART-` within "
    "an utterance",
    rows=_column_rows,
    has_columns=True,
)


# --- tables with a token in each row


def grouped_tokens(rows: list[Row], account: Account) -> list[Row] | None:
    """Return the utterances of a table with the columns `Sentence #`, `Word` and `Tag`; None for other tables."""
    names = list(rows[0].values)
    if not set(TOKEN_TABLE.used) <= set(names):
        return None
    if left := [name for name in names if name not in (*TOKEN_TABLE.used, *TOKEN_TABLE.unused)]:
        raise CorpusError(f"{rows[0].where}: almost {TOKEN_TABLE.title}; left over: {', '.join(left)}")
    account.reader = TOKEN_TABLE.title
    account.used |= TOKEN_TABLE.used
    account.unused |= {name: TOKEN_TABLE.unused[name] for name in names if name in TOKEN_TABLE.unused}
    found: list[Row] = []
    seen: set[str] = set()
    for row in rows:
        name = row.values["Sentence #"].strip()
        if name and (not found or name != found[-1].values["sentence"]):
            if name in seen:
                raise CorpusError(f"{row.where}: the sentence {name!r} is in two places; bring its rows together")
            seen.add(name)
            found.append(Row(row.where, {"sentence": name, "words": [], "tags": []}))
        if not found:
            raise CorpusError(f"{row.where}: 'Sentence #' is empty, and no sentence has begun")
        found[-1].values["words"].append(row.values["Word"].strip())
        found[-1].values["tags"].append(row.values["Tag"].strip())
    return [Row(row.where, {"words": row.values["words"], "tags": row.values["tags"]}) for row in found]
