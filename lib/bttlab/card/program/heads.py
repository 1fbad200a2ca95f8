"""From the last hidden states to the losses and back: the intent from token 0, a slot from each word.

A head is a TT pooler with tanh, then a dense layer. Pooled tokens are held, token t in row t mod ROWS, and the
weight's rows
stream past: logits come as (classes) words with the tokens along the lanes, are turned by the shuffle unit to (tokens,
classes), and so are their gradients on the way back. A head with many classes has them in two parts, one an engine.
"""

from dataclasses import dataclass

import numpy as np

from bttlab.card.machine import machine
from bttlab.card.program import banks
from bttlab.card.program.builder import LANES, ROWS, Builder, block_rows, gate, padded, words_for
from bttlab.card.program.functions import EXPONENT, TANH
from bttlab.card.program.instruction import At, Bound, Loop, at, most_of
from bttlab.card.program.layout import Block, Layout
from bttlab.card.program.moving import moved, part

M = machine()
ENGINE = 1  # that has a head of one token
SQUARE = np.arange(LANES * LANES).reshape(LANES, LANES).T  # a square of elements, turned


@dataclass(frozen=True)
class Part:
    """The classes of a head that one engine has.

    Attributes
    ----------
    engine : int
    block : Block
        Their rows of the weight.
    words : int
        Of classes, LANES of them each.
    first : int
        The first of these words.
    turned : At
        Logits, then their gradients, as (classes) words of tokens, a block of tokens after the other.
    pooled : At
        The pooled tokens in the engine's held memory.
    """

    engine: int
    block: Block
    words: int
    first: int
    turned: At
    pooled: At

    @property
    def classes(self) -> int:
        """Classes, filled up to whole words."""
        return self.words * LANES


class Head:
    """One of the two heads.

    Parameters
    ----------
    builder : Builder
    layout : Layout
    name : str
        "intent" or "slot".
    classes, words : int
        Words of a token.
    tokens : int or Register
    rows : int
        First statistic of its tokens.
    weight, label_weight, class_weight : tuple
        Immediates: of the softmax in the gradient, of the label's one, and of every class for label smoothing.
    """

    def __init__(self, builder: Builder, layout: Layout, name, classes, words, tokens: Bound, rows, weights):
        self.builder, self.layout, self.name = builder, layout, name
        self.classes, self.words, self.tokens, self.rows = classes, words, tokens, rows
        self.weight, self.label_weight, self.class_weight = weights
        self.class_words = words_for(classes)
        self._place(builder, layout)
        self.bias = layout.place(f"{name}_head.bias", banks.REST)
        self.logits = builder.take(f"{name} logits", banks.FEED_FORWARD, most_of(tokens) * self.class_words)

    def _place(self, builder: Builder, layout: Layout) -> None:
        """Where weight, logits and pooled tokens lie."""
        name, words = self.name, self.words
        self.token_blocks = -(-most_of(self.tokens) // ROWS)
        split = self.class_words > 2
        first_words = -(-self.class_words // 2) if split else self.class_words
        pieces = [(0 if split else 1, 0, first_words, banks.REST)]
        if split:
            pieces.append((1, first_words, self.class_words - first_words, banks.EMBEDDING))
        self.parts = []
        for engine, first, count, bank in pieces:
            lines = (first * LANES, (first + count) * LANES)
            block = layout.place(f"{name}_head.weight", bank, part=lines, padded_rows=count * LANES)
            turned = builder.take(
                f"{name} logits", (banks.SCALARS, banks.SCORES)[engine], count * LANES * self.token_blocks
            )
            pooled = builder.hold(f"pooled {name}", engine, words * self.token_blocks)
            self.parts.append(Part(engine, block, count, first, turned, pooled))

    def _block(self, block: int) -> Bound:
        return block_rows(self.tokens, block)

    def _gated(self, block: int, *loops: Loop) -> list[Loop]:
        """The loops of an instruction for one block of tokens; none of its steps if the sample has no such tokens."""
        return [Loop("gate", gate(self.tokens, block)), *loops] if block else list(loops)

    @property
    def _rows(self) -> dict:
        loops = [Loop("w", self.class_words), padded("t", self.tokens)]
        flags = M.INTENT if self.name == "intent" else 0
        return {
            "loops": loops,
            "slot_loop": "w",
            "rows": self.rows,
            "count": self.classes,
            "word_loop": "w",
            "flags": flags,
        }

    def forward(self, y: At, pooled: At) -> None:
        """pooled = tanh(y); logits; softmax, loss and the gradient of the logits."""
        b = self.builder
        b.layer = f"{self.name}_head"
        matrix = {"t": self.words, "w": 1}
        loops = [Loop("t", self.tokens), Loop("w", self.words)]  # as pooled tokens are held
        tanh = b.functions.number(TANH)
        b.vector(M.FUNCTION, "pooled = tanh(y)", loops, part(y, **matrix), r0=part(pooled, **matrix), function=tanh)
        self._logits(pooled)
        self._loss()

    def _logits(self, pooled: At) -> None:
        for p in self.parts:
            for block in range(self.token_blocks):
                words = block * ROWS * self.words, block * self.words
                source, held = (part(at, n) for at, n in zip((pooled, p.pooled), words, strict=True))
                moved(self.builder, "hold pooled", source, held, self._block(block), self.words)
                self._part_logits(p, block)

    @property
    def pieces(self) -> int:
        """In how many parts the gradient of the pooled tokens comes."""
        return len(self.parts)

    def _part_logits(self, p: Part, block: int) -> None:
        b, w = self.builder, self.words
        groups = -(-p.classes // M.SLOTS)
        while p.classes % groups:
            groups += 1
        each = p.classes // groups
        turned = part(p.turned, block * p.classes, g=each, c=1)
        b.reduce(
            p.engine,
            "logits, turned",
            self._gated(block, Loop("g", groups), Loop("w", w + 1), Loop("c", each)),
            "w",
            part(p.pooled, block * w, w=1),
            part(p.block.where(), g=each * w, c=w, w=1),
            turned,
            count=self._block(block),
        )
        b.shuffle(
            "turn logits",
            p.words,
            SQUARE,
            part(p.turned, block * p.classes, block=LANES, y=1),
            part(self.logits, block * ROWS * self.class_words + p.first, block=1, y=self.class_words),
            out_count=self._block(block),
            gate=gate(self.tokens, block) if block else None,
        )

    def _loss(self) -> None:
        b, rows = self.builder, self._rows
        logits = part(self.logits, t=self.class_words, w=1)
        bias = part(self.bias.where(), w=1)
        exponent = b.functions.number(EXPONENT)
        b.vector(M.ADD, "logits + b", a=logits, b=bias, r0=logits, **rows)
        b.vector(M.MAXIMUM, "largest logit", a=logits, depth=("w",), **rows)
        more = rows | {"flags": rows["flags"] | M.LOSS}
        weights = {"immediates": (1.0, self.weight)}
        b.vector(
            M.EXPONENT, "exp(logit), loss", a=logits, r0=logits, depth=("w",), function=exponent, **weights, **more
        )
        weights = {"immediates": (self.class_weight, self.label_weight)}
        b.vector(M.LOSS_BACK, "d_logits", a=logits, r0=logits, **weights, **rows)

    def backward(self, pooled: At, pieces: list[At], d_pooled: At, d_y: At) -> None:
        """Gradients of weight and bias; d_y = d_pooled (1 - pooled^2); `pieces`: each part's share of d_pooled."""
        b, w = self.builder, self.words
        b.layer = f"{self.name}_head"
        d_logits = part(self.logits, t=self.class_words, w=1)
        b.vector(
            M.COLUMNS,
            "d_b",
            [Loop("t", self.tokens), padded("w", self.class_words)],
            a=d_logits,
            r1=at(f"bank {self.bias.bank + banks.GRADIENT}", self.bias.base, w=1),
            depth=("t",),
            slot_loop="t",
            flags=M.CHECK,
        )
        self._classes_backward(pooled, pieces)
        matrix = {"t": w, "w": 1}
        loops = [Loop("w", w), padded("t", self.tokens)]
        d = pieces[0]
        if len(pieces) == 2:
            d = d_pooled
            a, c = (part(piece, **matrix) for piece in pieces)
            b.vector(M.ADD, "d_pooled", loops, a, c, r0=part(d, **matrix))
        b.vector(M.TANH_BACK, "d_y", loops, part(d, **matrix), part(pooled, **matrix), r0=part(d_y, **matrix))

    def _classes_backward(self, pooled: At, pieces: list[At]) -> None:
        """Gradients of the weight and of the pooled tokens."""
        for p, piece in zip(self.parts, pieces, strict=True):
            for block in range(self.token_blocks):
                self._part_backward(p, block, piece)

    def _part_backward(self, p: Part, block: int, piece: At) -> None:
        b, w, rows = self.builder, self.words, self._block(block)
        turned = part(p.turned, block * p.classes)
        b.shuffle(
            "turn d_logits",
            p.words,
            SQUARE,
            part(self.logits, block * ROWS * self.class_words + p.first, block=1, y=self.class_words),
            part(turned, block=LANES, y=1),
            live=rows,
            gate=gate(self.tokens, block) if block else None,
        )
        gradient = at(f"bank {p.block.bank + banks.GRADIENT}", p.block.base, c=w, w=1)
        b.accumulate(
            p.engine,
            "d_pooled = d_logits weight",
            self._gated(block, Loop("c", p.classes), padded("w", w)),
            ("c",),
            "c",
            part(turned, c=1),
            part(p.block.where(), c=w, w=1),
            count=rows,
        )
        loops = [Loop("t", rows), Loop("w", w)]
        b.drain(p.engine, "d_pooled", loops, "t", 0, at("", 0, w=1), part(piece, block * ROWS * w, t=w, w=1))
        b.expand(
            p.engine,
            "d_weight = d_logits^T pooled",
            self._gated(block, Loop("c", p.classes), Loop("w", w)),
            part(p.pooled, block * w, w=1),
            part(turned, c=1),
            gradient,
            addend=gradient if block else None,
            count=rows,
            flags=M.CHECK,
        )


class SingleHead(Head):
    """The head of one token: rows of the weight are held, and the pooled token streams past, all classes at once."""

    def _place(self, builder: Builder, layout: Layout) -> None:
        rows = self.class_words * LANES
        self.weight_block = layout.place(f"{self.name}_head.weight", banks.REST, padded_rows=rows)
        self.held = builder.hold(f"weight of {self.name}_head", ENGINE, self.class_words * self.words)

    @property
    def pieces(self) -> int:
        """One part."""
        return 1

    def prepare(self) -> None:
        """The weight into the held memory: class c into row c mod ROWS."""
        self.builder.layer = f"{self.name}_head"
        for c in range(self.class_words):
            source = part(self.weight_block.where(), c * ROWS * self.words)
            moved(self.builder, "hold weight", source, part(self.held, c * self.words), ROWS, self.words)

    def _logits(self, pooled: At) -> None:
        self.builder.reduce(
            ENGINE,
            "logits",
            [Loop("w", self.words + 1), padded("c", self.class_words)],
            "w",
            part(self.held, c=self.words, w=1),
            part(pooled, w=1),
            part(self.logits, c=1),
        )

    def _classes_backward(self, pooled: At, pieces: list[At]) -> None:
        b, w = self.builder, self.words
        result = part(pieces[0], w=1)
        for c in range(self.class_words):
            addend = result if c else None
            d_logits, held = part(self.logits, c), part(self.held, c * w, w=1)
            what, rows = "d_pooled = d_logits weight", min(ROWS, self.classes - c * ROWS)
            b.expand(ENGINE, what, [Loop("w", w)], held, d_logits, result, addend=addend, count=rows)
        for c in range(self.class_words):
            what = "d_weight = d_logits^T pooled"
            loops = [Loop("t", 1), Loop("w", w)]
            b.accumulate(ENGINE, what, loops, ("t",), "t", part(self.logits, c), part(pooled, w=1))
            block = self.weight_block
            gradient = at(f"bank {block.bank + banks.GRADIENT}", block.base + c * ROWS * w, r=w, w=1)
            b.drain(ENGINE, what, [Loop("r", ROWS), Loop("w", w)], "r", 0, at("", 0, w=1), gradient, check=True)
