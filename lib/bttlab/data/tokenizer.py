"""Tokenizers of a corpus: words between spaces, Unicode words, runs of letters or digits, characters, or subwords."""

import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bttlab.util.errors import BttlabError
from bttlab.util.reading import read_text

PUNCTUATION = '.,;:!?"()'  # removed from the ends of words in plain text
FILE = "tokenizer.json"  # in a corpus's folder; without it, words are between spaces
# Letters of scripts that put no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = re.compile(
    "[\u0e01-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Piece:
    """A word, character or subword of a text."""

    start: int  # place of its first character
    end: int  # and after its last
    form: str  # as the vocabulary has it
    first: bool = True  # False for a subword that continues a word: it has no label of its own


@dataclass(frozen=True)
class Tokenizer:
    """Cuts a text into pieces.

    Raises BttlabError if the kind is unknown, or `json` is not a tokenizer.json of Hugging Face.
    """

    kind: str = "spaces"  # a key of `KINDS`
    json: str = ""  # content of the tokenizer.json of subwords

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BttlabError(f"tokenizer {self.kind!r} is none of {', '.join(KINDS)}; or give a tokenizer.json")
        if self.kind == "subwords":
            _subword_tokenizer(self.json)

    def pieces(self, text: str) -> list[Piece]:
        return [*KINDS[self.kind](text, self.json)]

    @property
    def is_default(self) -> bool:
        return self.kind == "spaces"

    def to_text(self) -> str:
        """Return the content of a corpus's file; that of subwords is the tokenizer.json as it was given."""
        return self.json or json.dumps({"bttlab": self.kind})

    @classmethod
    def from_text(cls, text: str) -> "Tokenizer":
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BttlabError(f"a tokenizer is no JSON ({error})") from None
        kind = values.get("bttlab") if isinstance(values, dict) else None
        return cls(kind) if isinstance(kind, str) else cls("subwords", text)

    @classmethod
    def of(cls, name: str) -> "Tokenizer":
        """Return the tokenizer of a name, or of the path of a tokenizer.json."""
        if name.endswith(".json"):
            return cls.from_text(read_text(Path(name).expanduser()))
        if name == "subwords":
            raise BttlabError("tokenizer subwords: give the path of its tokenizer.json")
        return cls(name)


def unspaced(text: str) -> str | None:
    """Return a text's first letter of a script that puts no spaces between words; None without one."""
    found = _UNSPACED.search(text)
    return found and found[0]


def _spaces(text: str, _: str) -> Iterator[Piece]:
    for match in re.finditer(r"\S+", text):
        word = match[0].strip(PUNCTUATION)
        start = match.start() + len(match[0]) - len(match[0].lstrip(PUNCTUATION))
        if word:
            yield Piece(start, start + len(word), word.lower())


def _words(text: str, _: str) -> Iterator[Piece]:
    import regex

    place = 0
    for part in regex.split(r"(?V1w)\b", text):  # word boundaries of Unicode, UAX 29
        if part and not regex.fullmatch(r"[\s\p{P}]+", part):
            for word in re.finditer(
                r"\S+", part
            ):  # UAX 29 joins 10 and 000 by U+202F; a corpus has a space between words
                yield Piece(place + word.start(), place + word.end(), word[0].lower())
        place += len(part)


def _runs(text: str, _: str) -> Iterator[Piece]:
    """Yield runs of letters, runs of digits, and each other character that is no space."""
    import regex

    for match in regex.finditer(r"(?:\p{L}[\p{M}\u200c\u200d]*)+|\p{Nd}+|\X", text):
        if not match[0].isspace():
            yield Piece(match.start(), match.end(), match[0].lower())


def _characters(text: str, _: str) -> Iterator[Piece]:
    import regex

    for match in regex.finditer(r"\X", text):  # a letter with its marks is one character
        if not match[0].isspace():
            yield Piece(match.start(), match.end(), match[0].lower())


def _subwords(text: str, content: str) -> Iterator[Piece]:
    try:
        found = _subword_tokenizer(content).encode(text, add_special_tokens=False)
    except Exception as error:  # what the library raises
        raise BttlabError(
            f"the tokenizer cannot cut {text[:40]!r} ({str(error)[:80]}); give it an unknown token, or take another"
        ) from None
    word = None
    for form, (start, end), of_word in zip(found.tokens, found.offsets, found.word_ids, strict=True):
        covered = text[start:end]
        start += len(covered) - len(covered.lstrip())  # of a byte-level token, which has the space before it
        if start < end:
            if form.split() != [form]:
                raise BttlabError(f"the tokenizer has the token {form!r}, with a space in it; take another")
            yield Piece(start, end, form, of_word is None or of_word != word)
            word = of_word


@functools.lru_cache(maxsize=8)
def _subword_tokenizer(content: str) -> Any:
    import tokenizers

    try:
        made = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # what the library raises
        raise BttlabError(
            f"not a tokenizer.json of Hugging Face ({str(error)[:80]}); save one with tokenizers"
        ) from None
    made.no_truncation()
    made.no_padding()
    return made


KINDS: dict[str, Callable[[str, str], Iterator[Piece]]] = {
    "spaces": _spaces,
    "words": _words,
    "runs": _runs,
    "characters": _characters,
    "subwords": _subwords,
}
SPACES = Tokenizer()
