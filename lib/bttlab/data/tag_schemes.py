"""Convert slot tags of the usual schemes to BIO: IO, IOB1, IOB2, BIOES, BILOU, BMES, suffixes, plain names."""

import re
from collections.abc import Sequence

from .corpus import OUTSIDE, CorpusError

BEGINNING, SINGLE, ENDING = "BSUW", "SUW", "ELSUW"  # letters that begin a chunk, are one, end one
_PREFIX = re.compile(r"([BIESLUMW])[-_](.+)", re.IGNORECASE)
_SUFFIX = re.compile(r"(.+)[-_]([BIESLUMW])")
_NAME = re.compile(r"[^\W\d_].*")  # begins with a letter
# No name: a letter alone, or joined by another character, or O with a name.
_OTHER_SCHEME = re.compile(r"[BIbi]|[BI]\W.*|.+\W[BI]|O[-_].+")
_SCHEMES = [set(letters) for letters in ("BIES", "BILU", "BMES", "BMEW", "BIEW", "BMLU")]
_OUTSIDE = ("O", "o")
Place = tuple[str, Sequence[str]]  # where an utterance is, and its tags


def to_bio(utterances: Sequence[Place]) -> list[list[str]]:
    """Return the tags of a file's utterances in BIO (IOB2).

    The scheme is that of the whole file. Without prefixes, neighbours with the same name are one chunk. In every
    scheme a tag that continues nothing begins a chunk.

    Raises CorpusError if the tags are of no known scheme; the message names the place and the tag.
    """
    distinct = {tag for _, tags in utterances for tag in tags if tag not in _OUTSIDE}
    for place, tags in utterances:
        if stacked := next((tag for tag in tags if "|" in tag), None):
            raise CorpusError(f"{place}: {stacked!r} has several tags in one; keep one for each word")
    split = _split_function(distinct - {"0"}, utterances[0][0] if utterances else "")
    bio = []
    for place, tags in utterances:
        made: list[str] = []
        kind = ""  # of the chunk that the next tag may continue
        for tag in tags:
            letter, name = split(tag, place)
            if not name:
                made.append(OUTSIDE)
            elif letter in BEGINNING or name != kind:
                made.append(f"B-{name}")
            else:
                made.append(f"I-{name}")
            kind = "" if letter in ENDING else name
        bio.append(made)
    return bio


def _split_function(distinct: set[str], first: str):
    """Return what splits a tag into its letter in upper case ("I" if it has none) and its name ("" outside).

    A scheme has B or I: U-Bahn, S-Bahn and E-Mail are names. `first` is the place of the first utterance.
    """
    prefixed = {tag: match for tag in distinct if (match := _PREFIX.fullmatch(tag))}
    letters = {match[1] for match in prefixed.values()}
    all_prefixed, all_suffixed = len(prefixed) == len(distinct), all(map(_SUFFIX.fullmatch, distinct))
    # A lower-case letter counts if every tag has one: e-mail beside address is a name.
    by_prefix = letters & set("BI") or (all_prefixed and letters & set("bi"))
    upper = {letter.upper() for letter in letters}
    if not by_prefix and distinct and all_prefixed and upper in ({"S"}, {"U"}, {"W"}):
        raise CorpusError(
            f"{first}: {min(distinct)!r} may be a name, or a chunk of one word in BIOES, BILOU or BMEWO; write "
            "B-… for a chunk, or another name"
        )
    wrong = by_prefix and upper - {"B", "I"} and not any(upper <= scheme for scheme in _SCHEMES)
    if wrong or (by_prefix and upper & set("SUW") and not upper & set("EL") and upper & set("BM")):
        odd = min(tag for tag in prefixed if tag[0].upper() not in "BI")
        raise CorpusError(
            f"{first}: tag {odd!r} is of no scheme with {', '.join(sorted(upper))}; rename it, or write B-… and I-…"
        )
    by_suffix = not by_prefix and distinct and all_suffixed and any(tag[-1] in "BISU" for tag in distinct)

    def split(tag: str, place: str) -> tuple[str, str]:
        if tag in _OUTSIDE or (tag == "0" and (by_prefix or by_suffix)):
            return "O", ""
        if by_prefix and (match := _PREFIX.fullmatch(tag)):
            return match[1].upper(), match[2]
        if by_suffix and (match := _SUFFIX.fullmatch(tag)):
            return match[2], match[1]
        if by_prefix or not _NAME.fullmatch(tag) or _OTHER_SCHEME.fullmatch(tag):
            rule = (
                "other tags have a prefix such as B- or I-"
                if by_prefix
                else "a name, or B and I joined to it by - or _"
            )
            raise CorpusError(f"{place}: tag {tag!r} is of no known scheme ({rule}); write O, B-… or I-…")
        return "I", tag

    return split
