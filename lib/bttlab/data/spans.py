"""A sentence with its predicted labels: the intent, and the slots as spans of words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from bttlab.util.terminal import one_line

from .corpus import OUTSIDE, PAD


@dataclass(frozen=True)
class Span:
    """Words `first` to `end` - 1 of a sentence, which fill a slot, or one word outside of all slots."""

    first: int
    end: int
    slot: str  # a slot such as "toloc.city_name", or "O"
    probability: float | None = None  # product over the words' tags, which the model labels independently


@dataclass(frozen=True)
class Labelled:
    words: list[str]
    intent: str | None = None  # None of a model that labels no intents
    # BIO tags, one for each word, PAD for a subword that continues one; empty of a model without slots
    tags: list[str] = field(default_factory=list)
    # probability of every intent; empty if it is not known
    intent_chances: Mapping[str, float] = field(default_factory=dict)
    tag_chances: list[Mapping[str, float]] = field(default_factory=list)  # probability of every tag, for each word
    unknown: list[str] = field(default_factory=list)  # words that are not in the vocabulary

    @property
    def intent_probability(self) -> float | None:
        return self.intent_chances.get(self.intent or "")

    @property
    def tag_probabilities(self) -> list[float]:
        pairs = zip(self.tags, self.tag_chances, strict=bool(self.tag_chances))
        return [1.0 if tag == PAD else chances[tag] for tag, chances in pairs]

    @property
    def spans(self) -> list[Span]:
        """The sentence in spans, in order; every word is in one. Empty without tags."""
        known, found = self.tag_probabilities, slots_of(self.tags)
        return [Span(first, end, slot, prod(known[first:end]) if known else None) for first, end, slot in found]

    def text(self, span: Span) -> str:
        return " ".join(self.words[span.first : span.end])

    def __str__(self) -> str:
        """The intent, the sentence, and a line for each slot that it fills."""
        lines = [] if self.intent is None else [f"intent  {self.intent}{percent(self.intent_probability)}"]
        lines.append(f"  {' '.join(self.words)}")
        filled = [span for span in self.spans if span.slot != OUTSIDE]
        texts, slots = [self.text(span) for span in filled], [span.slot for span in filled]
        wide, wider = (max(map(len, column), default=0) for column in (texts, slots))
        for text, slot, span in zip(texts, slots, filled, strict=True):
            lines.append(f"  {text:{wide}}  {slot:{wider}}{percent(span.probability)}".rstrip())
        if self.tags and not filled:
            lines.append("  no slots")
        if self.unknown:
            lines.append(f"unknown to the vocabulary: {' '.join(self.unknown)}")
        return "\n".join(map(one_line, lines))


def slots_of(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return (first, end, slot) of each chunk, by conlleval's rules, and of each word outside of all, with the slot O.

    A tag I-x begins a chunk unless the tag before is B-x or I-x. PAD, of a subword that continues a word, goes on with
    what its word is in.
    """
    found: list[tuple[int, int, str]] = []
    before = OUTSIDE  # the tag of the last word
    for place, tag in enumerate(tags):
        is_in_slot = tag[:2] in ("B-", "I-")
        goes_on = tag[:2] == "I-" and before[:2] in ("B-", "I-") and before[2:] == tag[2:]
        if found and (tag == PAD or goes_on):
            found[-1] = (found[-1][0], place + 1, found[-1][2])
        else:
            found.append((place, place + 1, tag[2:] if is_in_slot else OUTSIDE))
        before = before if tag == PAD else tag
    return found


def percent(probability: float | None) -> str:
    """Return a probability as "  61 %"; nothing if it is not known."""
    return "" if probability is None else f"  {probability:.0%}".replace("%", " %")
