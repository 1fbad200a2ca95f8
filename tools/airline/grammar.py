"""A small context-free grammar with tagged terminals, and the dice it is expanded with.

A grammar is text. A line that ends in a colon names a rule, the lines below are its alternatives; ``6x`` before one
makes it six times as likely; ``%`` in a rule stands for its argument::

    date(%):
      3x on <$day:%_date.day_name>
      <today|tomorrow:%_date.today_relative>

    ask:
      [please] (list|show me) the flights {date depart}

In an alternative ``(a|b)`` is a choice, ``[a]`` is there half of the time, ``{rule argument}`` expands a rule,
``<words:label>`` are words that carry a slot label, and ``<$kind:label>`` draws such words from a lexicon.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Tagged = list[tuple[str, str]]

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<open>[(\[]) | (?P<close>[)\]]) | (?P<bar>\|)
    | {(?P<rule>[^}]*)} | <(?P<slot>[^>]*)> | (?P<word>[^\s()\[\]|{}<>]+)
    )""",
    re.VERBOSE,
)


class Dice:
    """Random choices from the raw 64-bit stream of PCG64, which NumPy keeps the same on every machine and version."""

    def __init__(self, *seed: int):
        self._bits = np.random.PCG64(list(seed))

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound)."""
        return (int(self._bits.random_raw()) * bound) >> 64

    def skewed(self, bound: int) -> int:
        """An integer in [0, bound) whose density falls with the index: the product of two uniform variates."""
        return (int(self._bits.random_raw()) * int(self._bits.random_raw()) * bound) >> 128

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def pick(self, items: Sequence) -> Any:
        return items[self.below(len(items))]

    def weighted(self, choices: list[tuple[int, Any]]) -> Any:
        """The item of one of the (weight, item) pairs, in proportion to its integer weight."""
        left = self.below(sum(weight for weight, _ in choices))
        for weight, item in choices:
            if left < weight:
                return item
            left -= weight
        raise AssertionError("unreachable: the weights add up to the bound")


@dataclass(frozen=True)
class Word:
    text: str


@dataclass(frozen=True)
class Slot:
    label: str
    kind: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    rule: str
    argument: str


@dataclass(frozen=True)
class Choice:
    branches: tuple[tuple, ...]


def parse(text: str) -> tuple:
    """Parse one alternative into a tuple of Word, Slot, Call and Choice nodes."""
    stack: list[tuple[str, list[list]]] = [("", [[]])]
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"cannot read {text[position:]!r} in {text!r}")
        position = match.end()
        branches = stack[-1][1]
        if match["open"]:
            stack.append((match["open"], [[]]))
        elif match["close"]:
            bracket, branches = stack.pop()
            if bracket + match["close"] not in ("()", "[]"):
                raise ValueError(f"unbalanced {match['close']} in {text!r}")
            optional = [()] if bracket == "[" else []
            stack[-1][1][-1].append(Choice(tuple(map(tuple, branches)) + tuple(optional)))
        elif match["bar"]:
            branches.append([])
        elif match["rule"] is not None:
            rule, _, argument = match["rule"].partition(" ")
            branches[-1].append(Call(rule, argument))
        elif match["slot"] is not None:
            words, _, label = match["slot"].rpartition(":")
            if words.startswith("$"):
                branches[-1].append(Slot(label, kind=words[1:]))
            else:
                branches[-1].append(Slot(label, words=tuple(words.split("|"))))
        else:
            branches[-1].append(Word(match["word"]))
    if len(stack) > 1 or len(stack[0][1]) > 1:
        raise ValueError(f"unbalanced bracket or bare | in {text!r}")
    return tuple(stack[0][1][0])


@dataclass
class Grammar:
    """Rules by name; :meth:`expand` makes one utterance of a rule."""

    rules: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    _parsed: dict[tuple[str, str], list[tuple[int, tuple]]] = field(default_factory=dict)

    @classmethod
    def from_text(cls, *texts: str) -> "Grammar":
        grammar = cls()
        for line in "\n".join(texts).splitlines():
            line = line.partition("#")[0].rstrip()
            if header := re.fullmatch(r"(\w+)(\(%\))?:", line):
                alternatives = grammar.rules[header[1]] = []
            elif line:
                weight, template = re.fullmatch(r"\s+(?:(\d+)x(?:\s+|$))?(.*)", line).groups()
                alternatives.append((int(weight or 1), template))
        return grammar

    def alternatives(self, rule: str, argument: str = "") -> list[tuple[int, tuple]]:
        """The (weight, nodes) pairs of a rule with its argument filled in."""
        if (rule, argument) not in self._parsed:
            pairs = [(weight, parse(text.replace("%", argument))) for weight, text in self.rules[rule]]
            self._parsed[rule, argument] = pairs
        return self._parsed[rule, argument]

    def expand(self, rule: str, dice: Dice, draw: Callable[[str, str], str], argument: str = "") -> Tagged:
        """Expand a rule into (word, tag) pairs; ``draw(kind, label)`` gives the words of a lexicon terminal."""
        return self._expand(dice.weighted(self.alternatives(rule, argument)), dice, draw)

    def _expand(self, nodes: tuple, dice: Dice, draw: Callable[[str, str], str]) -> Tagged:
        tagged: Tagged = []
        for node in nodes:
            if isinstance(node, Word):
                tagged.append((node.text, "O"))
            elif isinstance(node, Slot):
                words = (draw(node.kind, node.label) if node.kind else dice.pick(node.words)).split()
                tagged += [(word, ("I-" if i else "B-") + node.label) for i, word in enumerate(words)]
            elif isinstance(node, Call):
                tagged += self.expand(node.rule, dice, draw, node.argument)
            else:
                tagged += self._expand(dice.pick(node.branches), dice, draw)
        return tagged
