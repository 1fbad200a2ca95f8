"""Cycles of the contraction kernels, step by step, from shapes alone.

The emulated card notes what it executes (`ContractionKernel`); this module predicts the same from outside, step by step
in the order of `hls_src/contract_right_to_left.h` and `hls_src/contract_bidirectional.h`. Steps that make a tensor have
its name in `bttlab.tensor.flow_cost`; the others move words or re-order them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from bttlab.tensor.shapes import ShapeError
from bttlab.u50.cycles import Engine
from bttlab.u50.hardware import HardwareConfig
from bttlab.u50.layer import LayerShape
from bttlab.u50.records import words_for

STEPS = {
    "right_to_left": {
        "forward": "load/transpose/A6/A5/A4/A3/A2/y/pack y/turn y/store".split("/"),
        "backward": ("load/turn dy/dG1/dA2/dG2/dA3/dG3/dA4/dG4/dA5/dG5/dA6/dG6/dx/pack dx/store".split("/")),
    },
    "bidirectional": {
        "forward": "load/L2/L3/turn L3/R5/R4/z/y/store".split("/"),
        "backward": "load/dz/dL3/dR4/dx/turn dL3/dG3/dL2/dG2/dG1/dG4/dR5/dG5/dG6/store".split("/"),
    },
}  # in the order of the enumerations in hls_src

Span = tuple[int, int]


@dataclass(frozen=True)
class _Layer:
    """What takes how long; methods return cycles."""

    shape: LayerShape
    h: HardwareConfig

    @property
    def engine(self) -> Engine:
        return Engine(self.h)

    @property
    def w(self) -> int:
        return words_for(self.shape.features)

    @property
    def rank_words(self) -> int:
        return words_for(self.shape.rank)

    def loop(self, trips: int, depth: int = 0) -> int:
        return trips + self.h.read + depth + self.h.write + self.h.start if trips > 0 else 0

    def transfer(self, shares: Iterable[int]) -> int:
        """A matrix of tokens between HBM and the chip."""
        return self.h.hbm + sum(self.loop(tokens * self.w) for tokens in shares)

    def half_words(self) -> tuple[int, int]:
        sizes = [self.shape.blocks[number].words for number in range(6)]
        return sum(sizes[:3]), sum(sizes[3:])

    def load_cores(self) -> int:
        return self.h.hbm + sum(self.loop(words) for words in self.half_words())

    def turn(self, rows: int) -> int:
        return self.loop((rows + 1) * self.w, self.h.read) if rows else 0


def predict(
    flow: str, shape: LayerShape, tokens: int, hardware: HardwareConfig | None = None
) -> dict[str, dict[str, Span]]:
    """Return when each step begins and ends, in cycles from the start of its pass.

    Parameters
    ----------
    flow : {"right_to_left", "bidirectional"}
    shape : LayerShape
    tokens : int
    hardware : HardwareConfig, optional
        By default that of `hls_src/config.h`.

    Returns
    -------
    dict
        Under "forward" and "backward" a dict of step name to (begin, end).

    Raises
    ------
    ShapeError
        If there is no kernel for the flow, or it does not take so many tokens.
    """
    if flow not in STEPS:
        raise ShapeError(f"flow is {flow!r}: there are kernels for {', '.join(STEPS)}")
    if not 1 <= tokens <= shape.tokens:
        raise ShapeError(f"{tokens} tokens: the kernel takes 1 to {shape.tokens}")
    layer, shares = _Layer(shape, hardware or HardwareConfig()), (-(-tokens // 2), tokens // 2)
    forward, backward = {
        "right_to_left": (_right_to_left_forward, _right_to_left_backward),
        "bidirectional": (_bidirectional_forward, _bidirectional_backward),
    }[flow]
    return {"forward": forward(layer, shares), "backward": backward(layer, shares)}


def _chain(begin: int, **cycles: int) -> dict[str, Span]:
    """Steps one after the other; an underscore in a name stands for a space."""
    spans = {}
    for name, count in cycles.items():
        spans[name.replace("_", " ")] = (begin, begin + count)
        begin += count
    return spans


def _end(spans: dict[str, Span]) -> int:
    return max(end for _, end in spans.values())


def _right_to_left_forward(layer: _Layer, shares: tuple[int, int]) -> dict[str, Span]:
    engine, r, rank_words, n = layer.engine, layer.shape.rank, layer.rank_words, shares[0]
    (near, middle, far), (out_near, out_middle, out_far) = layer.shape.in_modes, layer.shape.out_modes[::-1]
    spans = _chain(
        0,
        load=layer.load_cores() + layer.transfer(shares),
        transpose=max(_transpose(layer, r, mode) for mode in (far, out_far)),
        A6=engine.expand(n * near * middle, far, rank_words),
        A5=engine.reduce(n * near, r, middle * rank_words),
        A4=engine.reduce(n, r, near * rank_words),
        A3=engine.expand(n, r, out_near * rank_words),
        A2=engine.expand(n * out_near, r, out_middle * rank_words),
        y=engine.expand(n * out_near * out_middle, r, 1),
        pack_y=n * layer.loop(out_near * out_middle),
        turn_y=sum(layer.turn(share) for share in shares),
        store=layer.transfer(shares),
    )
    return spans


def _right_to_left_backward(layer: _Layer, shares: tuple[int, int]) -> dict[str, Span]:
    engine, r, rank_words, n = layer.engine, layer.shape.rank, layer.rank_words, shares[0]
    (near, middle, far), (out_near, out_middle, out_far) = layer.shape.in_modes, layer.shape.out_modes[::-1]
    gradients = sum(layer.loop(words, layer.h.add) for words in layer.half_words())
    return _chain(
        0,
        load=layer.transfer(shares),
        turn_dy=sum(layer.turn(share) for share in shares),
        dG1=engine.accumulate(out_far, n * out_near * out_middle, rank_words, few=True) + _transpose(layer, out_far, r),
        dA2=engine.expand(n * out_near * out_middle, out_far, rank_words),
        dG2=engine.accumulate(r, n * out_near, out_middle * rank_words),
        dA3=engine.reduce(n * out_near, r, out_middle * rank_words),
        dG3=engine.accumulate(r, n, out_near * rank_words),
        dA4=engine.reduce(n, r, out_near * rank_words),
        dG4=engine.accumulate(r, n, near * rank_words),
        dA5=engine.expand(n, r, near * rank_words),
        dG5=engine.accumulate(r, n * near, middle * rank_words),
        dA6=engine.expand(n * near, r, middle * rank_words),
        dG6=engine.accumulate(far, n * near * middle, rank_words, few=True) + _transpose(layer, far, r),
        dx=engine.expand(n * near * middle, r, 1),
        pack_dx=n * layer.loop(near * middle),
        store=layer.h.hbm + gradients + layer.transfer(shares),
    )


def _transpose(layer: _Layer, rows: int, columns: int) -> int:
    return layer.loop(rows * words_for(columns)) + layer.loop(columns * words_for(rows))


def _bidirectional_forward(layer: _Layer, shares: tuple[int, int]) -> dict[str, Span]:
    engine, r, w = layer.engine, layer.shape.rank, layer.w

    def merge(near: int, middle: int, far: int) -> tuple[int, int]:
        tail = engine.expand(r * middle, r, words_for(far)) + layer.loop(r * middle)
        return tail, engine.expand(r * near, r, words_for(middle * far))

    spans = _chain(0, load=layer.load_cores() + layer.transfer(shares))
    begin = _end(spans)
    (l2, l3), (r5, r4) = merge(*layer.shape.out_modes[::-1]), merge(*layer.shape.in_modes)
    spans |= _chain(begin, L2=l2, L3=l3, turn_L3=layer.turn(r)) | _chain(begin, R5=r5, R4=r4)
    z, y = engine.reduce(shares[0], r, w), engine.expand(shares[0], r, w)
    return spans | _chain(_end(spans), z=z, y=y, store=layer.transfer(shares))


def _bidirectional_backward(layer: _Layer, shares: tuple[int, int]) -> dict[str, Span]:
    engine, r, w = layer.engine, layer.shape.rank, layer.w

    def unmerge(near: int, middle: int, far: int) -> tuple[int, int, int, int]:
        far_words, tail_words = words_for(far), words_for(middle * far)
        return (
            engine.reduce(r * near, r, tail_words),
            engine.accumulate(r, r * near, tail_words) + layer.loop(r * middle),
            engine.reduce(r * middle, r, far_words),
            engine.accumulate(r, r * middle, far_words, few=True),
        )

    spans = _chain(0, load=layer.transfer(shares), dz=engine.reduce(shares[0], r, w))
    begin, gradient = _end(spans), sum(engine.accumulate(r, share, w, few=True) for share in shares if share)
    spans |= _chain(begin, dR4=gradient) | _chain(begin, dL3=gradient)
    begin = _end(spans)
    spans |= _chain(begin, dx=engine.expand(shares[0], r, w)) | _chain(begin, turn_dL3=layer.turn(r))
    begin = _end(spans)
    for names, half in (
        (("dG3", "dL2", "dG2", "dG1"), layer.shape.out_modes[::-1]),
        (("dG4", "dR5", "dG5", "dG6"), layer.shape.in_modes),
    ):
        spans |= _chain(begin, **dict(zip(names, unmerge(*half), strict=True)))
    store = layer.h.hbm + sum(layer.loop(words) for words in layer.half_words()) + layer.transfer(shares)
    return spans | _chain(_end(spans), store=store)
