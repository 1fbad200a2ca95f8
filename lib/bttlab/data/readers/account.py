"""What an import has read of a file, and what it has not."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..corpus import CorpusError
from ..label_names import label_name
from ..tokenizer import SPACES, Tokenizer

OVERLAPS = ("refuse", "outer", "longest", "first")
OFFSETS = ("characters", "utf-16")
NO_PIECE = "letters and digits that the tokenizer leaves out"
NO_RELATIONS = "a corpus has no relations between spans"  # why they are not read


@dataclass(frozen=True)
class Row:
    """One utterance of a file, or one line of a table."""

    where: str  # its place in the file, for messages
    values: dict[str, Any]  # by column


@dataclass(frozen=True)
class Choices:
    """What the user says about a file."""

    text: str | None = None  # column with the words
    label: str | None = None  # column with the intent
    tags: str | None = None  # column with tags or spans
    ignore: frozenset[str] = frozenset()  # columns, and keys of spans as COLUMN.KEY, that are not to be read
    overlaps: str = "refuse"  # of `OVERLAPS`
    offsets: str | None = None  # of `OFFSETS`
    tokenizer: Tokenizer | None = None

    def __post_init__(self) -> None:
        for option, value, known in (
            ("overlaps", self.overlaps, OVERLAPS),
            ("offsets", self.offsets, (None, *OFFSETS)),
        ):
            if value not in known:
                raise CorpusError(f"--{option} {value} is none of {', '.join(filter(None, known))}")
        for option in ("text", "label", "tags"):
            if (name := getattr(self, option)) is not None and name in self.ignore:
                raise CorpusError(f"column {name!r} is under --{option} and under --ignore; leave one out")

    @property
    def splitter(self) -> Tokenizer:
        return self.tokenizer or SPACES


@dataclass
class Account:
    """Every column, line and character of a file: read, not used, or left out."""

    file: str
    reader: str = ""
    used: dict[str, str] = field(default_factory=dict)  # meaning, by column
    unused: dict[str, str] = field(default_factory=dict)  # reason, by column or key
    skipped: Counter = field(default_factory=Counter)  # lines, by reason
    left_out: Counter = field(default_factory=Counter)  # annotations, by reason
    characters: Counter = field(default_factory=Counter)  # by what became of them
    labels: Counter = field(default_factory=Counter)  # utterances, by intent
    slots: Counter = field(default_factory=Counter)  # chunks, by type
    several: dict[str, list[str]] = field(default_factory=dict)  # intents of a sentence that has several, by its text
    spellings: dict[str, list[str]] = field(default_factory=dict)  # of labels with blanks, by kind and name
    reordered: Counter = field(default_factory=Counter)  # utterances with several intents, by label and its other order
    utterances: int = 0
    _written: dict[str, dict[str, None]] = field(default_factory=dict, repr=False)  # spellings of all labels
    unspaced: int = 0  # utterances with some words in a script without spaces

    def spell(self, kind: str, spelling: str) -> None:
        """Note how a file writes an intent or slot; all spellings of a label stay if one of them is not its name."""
        name, written = label_name(spelling), " ".join(spelling.split())
        known = self._written.setdefault(f"{kind} {name}", {})
        known[written] = None
        if {*known} != {name}:
            self.spellings[f"{kind} {name}"] = list(known)

    def to_dict(self) -> dict[str, Any]:
        return {
            field.name: value if isinstance(value := getattr(self, field.name), str | int) else dict(value)
            for field in fields(self)
            if not field.name.startswith("_")
        }

    def lines(self) -> list[str]:
        """Return the account as lines of text."""
        found = [f"{self.file}: read as {self.reader}; {self.utterances:,} utterances"]
        found.append(f"  used: {_pairs(self.used)}")
        found.append(f"  not used: {_pairs(self.unused)}")
        found.append(f"  labels: {_counts(self.labels)}; slots: {_counts(self.slots)}")
        found.append(f"  lines skipped: {_counts(self.skipped)}; annotations left out: {_counts(self.left_out)}")
        found.append(f"  characters: {_counts(self.characters)}")
        return [*found, *self.notes()]

    def notes(self) -> list[str]:
        found = []
        if self.several:
            text, intents = next(iter(self.several.items()))
            count = len(self.several)
            found.append(f"sentences with several intents: {count:,}, such as {text!r} ({', '.join(intents)})")
        if alike := {key: written for key, written in self.spellings.items() if len(written) > 1}:
            told = ", ".join(f"{key} ({', '.join(map(repr, written))})" for key, written in alike.items())
            found.append(f"labels that are written in several ways and become one: {told}")
        if self.reordered:
            found.append(f"several intents in another order, which become one label: {_counts(self.reordered)}")
        if lost := self.characters[NO_PIECE]:
            found.append(f"{NO_PIECE}: {lost:,}")
        if self.unspaced:
            found.append(f"utterances with words in a script without spaces, each one word: {self.unspaced:,}")
        return found


def _pairs(values: dict[str, str]) -> str:
    return "; ".join(f"{name} ({what})" for name, what in values.items()) or "nothing"


def _counts(values: Counter, most: int = 8) -> str:
    parts = [f"{name} {count:,}" for name, count in values.most_common(most) if count]
    return ", ".join(parts) + f", … {len(values)} in all" * (len(values) > most) if parts else "none"


@dataclass(frozen=True)
class FileFormat:
    """A kind of file or folder, declared: what tells it from others, what is read of it, and what is not.

    The tables of docs/import.md are made from it.
    """

    title: str
    suffixes: tuple[str, ...] = ()  # none of a folder
    begins: str = ""  # first characters of the file, where other formats have the suffix
    used: Mapping[str, str] = field(default_factory=dict)  # meaning, by key, column or mark
    unused: Mapping[str, str] = field(default_factory=dict)  # why a key, column or mark is not read
    accepted: str = ""  # for docs/import.md
    refused: str = ""
    # the utterances as rows with words and tags, or text and spans; None of a container of rows in other formats
    rows: Callable[[Path, Choices, Account], list[Row]] | None = None
    has_columns: bool = False  # whether `rows` takes --text, --label, --tags and --ignore itself
