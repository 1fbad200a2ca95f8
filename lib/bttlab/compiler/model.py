"""The program of a model: forward pass, losses, backward pass and update, in the order of the mathematics."""

import contextlib
from collections.abc import Mapping
from typing import Any

from bttlab.compiler import banks
from bttlab.compiler.attention import Attention, block_sizes
from bttlab.compiler.builder import LANES, ROWS, Builder, padded
from bttlab.compiler.embedding import Embedding
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.functions import ACTIVATIONS
from bttlab.compiler.heads import Head
from bttlab.compiler.instruction import At, Level, Register, at
from bttlab.compiler.layout import Layout, linear_names, norm_names
from bttlab.compiler.linear import LinearLayers
from bttlab.compiler.machine import machine
from bttlab.compiler.norm import Norm
from bttlab.compiler.operands import part
from bttlab.compiler.work_matrices import WorkMatrices
from bttlab.model.config import LINEARS, ModelConfig

M = machine()
# Scalars of the sample's record.
RATE, STEP, ROOT, KEEP, INTENT_LABEL, INTENT_CLASS, SLOT_WEIGHT, SLOT_LABEL, SLOT_CLASS = range(9)

UPDATE_VECTORS = 128  # an update has its bank's ports for as many cycles, and others wait

# Parameters whose gradients are added to slice by slice, or written for the tokens of the sample only.
ADDED = ("embedding.position.weight", *(f"embedding.word.cores.{k}" for k in range(3)))


# What attention and the activation keep for the backward pass if there is room, and else is recomputed from z or p;
# and which of the work banks a matrix is taken from then.
RECOMPUTED = {"q": 2, "context": 1, "u": 0}


# How cores are spread: each in its engine's bank while there is room; evenly; and so that engine 1's bank is for those
# that can lie nowhere else.
SPREADS = (None, (0, 0), (0, M.banks[banks.OUT_CORES].depth))


class ModelProgram:
    """Model on the machine: the place of every tensor, and the instructions of a sample.

    Parameters
    ----------
    config : ModelConfig
        Of format "tensor".
    shapes : mapping of str to tuple of int, optional
        Of the parameters, if they are not the configuration's: each linear layer may have ranks of its own.
    flow : str or tuple of int
        Order of contraction of the linear layers (`linear.FLOWS`).
    spread : tuple of int, optional
        As for `linear.LinearLayers`.

    Attributes
    ----------
    has_moments : bool
        Whether there is room for what momentum and AdamW keep; without, the model is trained by SGD alone.

    Raises
    ------
    ProgramError
        If the machine does not hold it.
    """

    def __init__(
        self,
        config: ModelConfig,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        flow="bidirectional",
        spread=None,
    ):
        if config.format != "tensor":
            raise ProgramError("the model is dense: the card trains tensor-compressed ones; choose format tensor")
        if config.sequence_length > M.SEQUENCE or config.hidden_size % (config.heads * LANES):
            raise ProgramError(
                f"sequences of {config.sequence_length} and heads of {config.hidden_size / config.heads:g} "
                f"features: the card "
                f"takes up to {M.SEQUENCE} tokens, and heads of a multiple of {LANES} features"
            )
        for name in ("linear_out_modes", "linear_in_modes", "embedding_row_modes", "embedding_column_modes"):
            if len(getattr(config, name)) != 3:
                modes = getattr(config, name)
                raise ProgramError(f"{name} are {modes}: the card takes trains of three modes at each end")
        self.config, self.flow = config, flow
        self.shapes = dict(shapes or config.parameter_shapes())
        self.builder = b = Builder()
        self.vectors = vectors = config.hidden_size // LANES
        most = config.sequence_length
        self.tokens = Register(0, 0, 1, most)
        self.labelled = Register(-1, 0, 0, most - 1)  # vectors, that is tokens after [CLS]
        self.layout = Layout(b, self.shapes)
        matrix = most * vectors
        self._statistics = 0

        self.embedding = Embedding(b, self.layout, self.shapes, self.tokens)
        self.position = self.layout.place("embedding.position.weight", banks.REST)
        names = list(linear_names(config))
        for name in names:
            self.layout.place(f"{name}.bias", banks.REST)
        intent = (1.0, ("scalar", INTENT_LABEL), ("scalar", INTENT_CLASS))
        slot = (("scalar", SLOT_WEIGHT), ("scalar", SLOT_LABEL), ("scalar", SLOT_CLASS))
        self.intent_head = Head(b, self.layout, "intent", config.intents, vectors, 1, self._rows(1), intent)
        self.slot_head = Head(b, self.layout, "slot", config.slots, vectors, self.labelled, self._rows(most), slot)
        self.norms = []
        for name in norm_names(config):
            self.layout.place(f"{name}.weight", (banks.REST, banks.OUT_CORES))
            self.layout.place(f"{name}.bias", (banks.EMBEDDING, banks.IN_CORES))
            kept = b.take(f"normalized by {name}", banks.NORMALIZED, matrix)
            self.norms.append(Norm(b, self.layout, name, self.tokens, vectors, kept, self._rows(most)))
        rows = self._rows(config.heads * most)
        keys, values = (b.take_buffer(name, e, vectors * -(-most // ROWS)) for e, name in enumerate(("keys", "values")))
        self.attention = Attention(b, self.tokens, config.heads, vectors, keys, values, rows)
        scores = self.attention.score_vectors
        self.d_scores = b.take("d_scores", banks.SCALARS, scores)
        self.linears = LinearLayers(b, self.layout, names, self.shapes, most, flow, ("intent_pooler",), spread)
        self.embedding.keep()
        self.probabilities = [b.take("attention", (banks.SCORES, banks.KEPT), scores) for _ in range(config.encoders)]
        self.work = WorkMatrices(b, matrix)
        self.kept = [{name: self._keep(name, e) for name in RECOMPUTED} for e in range(config.encoders)]
        self.linears.divide_buffers()
        self.has_moments = b.has_room(banks.FIRST_MOMENT, self.layout.vectors)
        for bank in (banks.FIRST_MOMENT, banks.SECOND_MOMENT) if self.has_moments else ():
            b.take("moments", bank, self.layout.vectors)

    @classmethod
    def that_fits(cls, *model: Any) -> "ModelProgram":
        """Return what a model is, its cores spread over the banks if they do not fit otherwise."""
        for spread in SPREADS[:-1]:
            with contextlib.suppress(DoesNotFit):
                return cls(*model, spread=spread)
        return cls(*model, spread=SPREADS[-1])

    def _keep(self, name: str, encoder: int) -> At | None:
        """Return a place for a matrix that the backward pass reads again, or None: then it is recomputed."""
        matrix = self.config.sequence_length * self.vectors
        # A context of several blocks is added to where it lies, while p is read.
        beside_p = name == "context" and self.attention.blocks > 1 and self.probabilities[encoder].number == banks.KEPT
        if self.builder.has_room(banks.KEPT, matrix) and not beside_p:
            return self.builder.take(name, banks.KEPT, matrix)
        return self.work.take(RECOMPUTED[name]) if self.work.has_spare(RECOMPUTED[name]) else None

    def _rows(self, count: int) -> int:
        """Return the first of so many rows of statistics."""
        first = self._statistics
        self._statistics += count
        if self._statistics > M.STATISTICS:
            raise DoesNotFit(
                f"the model keeps {self._statistics} rows of statistics, the machine {M.STATISTICS}",
                "fewer encoders or heads, or a shorter sequence",
            )
        return first

    # ---- the sample ----------------------------------------------------------------------------------------------

    def emit_forward(self) -> None:
        """Embedding, encoders, heads and losses."""
        b, work = self.builder, self.work
        b.stage = "FP"
        self.embedding.prepare()
        rows, total, x = work.take(0), work.take(1), work.take(2)
        self.embedding.forward(rows)
        for head in (self.intent_head, self.slot_head):  # not before V, which may lie where weights are buffer
            head.prepare()
        self.norms[0].forward(rows, self.position.where(), total, x)
        work.give(rows, total)
        for encoder in range(self.config.encoders):
            x = self._encoder_forward(encoder, x)
        self.hidden = x
        self._heads_forward(x)

    def _encoder_forward(self, e: int, x: At) -> At:
        """h = LayerNorm(x + output(attention(x))); y = LayerNorm(h + second(activation(first(h))))"""
        b, work, linears = self.builder, self.work, self.linears
        query, key, value, output, first, second = range(len(LINEARS) * e, len(LINEARS) * (e + 1))
        block = block_sizes(self.tokens)
        q = self._take(e, "q")
        linears.forward(query, x, self.tokens, q)
        linears.forward(key, x, self.tokens, None, self.attention.keys, block)
        linears.forward(value, x, self.tokens, None, self.attention.values, block)
        b.layer = f"encoders.{e}.attention"
        context = self._take(e, "context")
        self.attention.forward(q, self.probabilities[e], context)
        self._give(e, "q", q)
        o, total = work.take(0), work.take(1)
        linears.forward(output, context, self.tokens, o)
        self._give(e, "context", context)
        h = work.take(3)
        self.norms[1 + 2 * e].forward(o, x, total, h)
        work.give(o, total, x)
        u = self._take(e, "u")
        linears.forward(first, h, self.tokens, u)
        activated, y, total = work.take(0), work.take(1), work.take(0)
        self._activate(e, u, activated)
        self._give(e, "u", u)
        linears.forward(second, activated, self.tokens, y)
        out = work.take(2)
        self.norms[2 + 2 * e].forward(y, h, total, out)
        work.give(activated, y, total, h)
        return out

    def _take(self, e: int, name: str) -> At:
        """Return where an encoder's matrix is kept, or a place for now."""
        return self.kept[e][name] or self.work.take(RECOMPUTED[name])

    def _give(self, e: int, name: str, place: At) -> None:
        """Give the place back if the matrix is not kept."""
        if self.kept[e][name] is None:
            self.work.give(place)

    def _activate(self, e: int, u: At, activated: At) -> None:
        b, name = self.builder, self.config.activation
        b.layer, activation = f"encoders.{e}.{name}", ACTIVATIONS[name]
        u = part(u, t=self.vectors, w=1)
        loops = [Level("w", self.vectors), padded("t", self.tokens)]
        result = part(activated, t=self.vectors, w=1)
        operation = M.TIMES_FUNCTION if activation.times_x else M.FUNCTION
        b.vector(operation, f"{name}(u)", loops, u, r0=result, function=b.functions.number(activation.function))

    def _heads_forward(self, x: At) -> None:
        work, linears = self.work, self.linears
        self.pooled = {}
        for name, head, tokens, offset in self._heads():
            y, pooled = work.take(0), [work.take(bank) for bank in (1, 3)][: len(head.parts)]
            linears.forward(linears.names.index(f"{name}_pooler"), part(x, offset), tokens, y)
            head.forward(y, pooled)
            work.give(y)
            self.pooled[name] = pooled

    def _heads(self):
        yield "intent", self.intent_head, 1, 0
        yield "slot", self.slot_head, self.labelled, self.vectors

    def emit_backward(self) -> None:
        """Every gradient of the sample."""
        b, work, linears = self.builder, self.work, self.linears
        b.stage = "BP"
        d = work.take(2)
        for name, head, tokens, offset in self._heads():
            pieces = [work.take(3), work.take(0)][: len(head.parts)]
            total, d_y = work.take(2), work.take(0)
            head.backward(self.pooled[name], pieces, total, d_y)
            layer = linears.names.index(f"{name}_pooler")
            linears.backward(layer, d_y, part(self.hidden, offset), tokens, part(d, offset))
            work.give(*pieces, total, d_y, *self.pooled[name])
        work.give(self.hidden)
        for encoder in reversed(range(self.config.encoders)):
            d = self._encoder_backward(encoder, d)
        gradient = self.position.gradient()
        self.norms[0].backward(d, gradient, check=True)
        self.embedding.backward(gradient)
        work.give(d)

    def _encoder_backward(self, e: int, d: At) -> At:
        """Return the gradient of what went into an encoder, from that of what came out."""
        b, work, linears, kept = self.builder, self.work, self.linears, self.kept[e]
        query, key, value, output, first, second = range(len(LINEARS) * e, len(LINEARS) * (e + 1))
        matrix, loops = {"t": self.vectors, "w": 1}, [Level("w", self.vectors), padded("t", self.tokens)]
        last = e == self.config.encoders - 1
        if not last:  # those of the last encoder are there still
            block = block_sizes(self.tokens)
            linears.recompute(key, self.tokens, None, self.attention.keys, block)
            linears.recompute(value, self.tokens, None, self.attention.values, block)
        u = self._take(e, "u")
        if kept["u"] is None:
            linears.recompute(first, self.tokens, u)
        d_total, activated, h = work.take(0), work.take(1), work.take(3)
        self.norms[2 + 2 * e].backward(d, d_total)
        self._activate(e, u, activated)
        self.norms[1 + 2 * e].recompute(h)
        d_activated, d_u = work.take(3), work.take(2)
        linears.backward(second, d_total, activated, self.tokens, d_activated)
        name = self.config.activation
        b.layer, slope = f"encoders.{e}.{name}", {"function": b.functions.number(ACTIVATIONS[name].slope)}
        of_u, d_a = part(u, **matrix), part(d_activated, **matrix)
        b.vector(M.TIMES_FUNCTION, f"d_u = d_a {name}'(u)", loops, of_u, d_a, r0=part(d_u, **matrix), **slope)
        self._give(e, "u", u)
        d_h = work.take(1)
        linears.backward(first, d_u, h, self.tokens, d_h, d_total)
        work.give(d, d_activated, activated, h)

        d_attended, x, d_context = work.take(0), work.take(2), work.take(3)
        self.norms[1 + 2 * e].backward(d_h, d_attended)
        self.norms[2 * e].recompute(x)
        context = self._take(e, "context")
        if kept["context"] is None:
            b.layer = f"encoders.{e}.attention"
            self.attention.recompute(self.probabilities[e], context)
        linears.backward(output, d_attended, context, self.tokens, d_context)
        self._give(e, "context", context)
        work.give(d_total, d_u, d_h)
        d_q, d_k, d_v = work.take(0), work.take(1), work.take(3)
        q = self._take(e, "q")
        if kept["q"] is None:
            linears.recompute(query, self.tokens, q)
        b.layer = f"encoders.{e}.attention"
        self.attention.backward(d_context, self.probabilities[e], self.d_scores, q, d_q, d_k, d_v)
        self._give(e, "q", q)
        d_x = work.take(2)
        linears.backward(value, d_v, x, self.tokens, d_x, d_attended)
        linears.backward(query, d_q, x, self.tokens, d_x, d_x)
        linears.backward(key, d_k, x, self.tokens, d_x, d_x)
        work.give(d_attended, x, d_context, d_q, d_k, d_v)
        return d_x

    # ---- the update ----------------------------------------------------------------------------------------------

    def emit_updates(self) -> None:
        """The update of every parameter; gradients that are added to, or not always written, are 0 afterwards."""
        b = self.builder
        b.stage = "PU"
        offset = 0
        for block in self.layout.blocks:
            b.layer = block.name
            gradient = block.gradient()
            state = [block.where(), gradient]
            if self.has_moments:
                state += (at(f"bank {bank}", offset) for bank in (banks.FIRST_MOMENT, banks.SECOND_MOMENT))
            for first in range(0, block.vectors, UPDATE_VECTORS):
                parts = (part(whole, first) for whole in state)
                b.update("update", min(block.vectors - first, UPDATE_VECTORS), *parts, clear=block.name in ADDED)
            offset += block.vectors
