"""A model with too many instructions is refused before banks are searched, with how many of its layers fit."""

import re
from dataclasses import dataclass

import pytest

from bttlab.compiler import lowering
from bttlab.compiler.errors import DoesNotFit
from bttlab.compiler.graph import Graph
from bttlab.compiler.machine import M
from bttlab.compiler.memory.banks import WINDOW
from bttlab.compiler.operation import SLOTS
from bttlab.compiler.program import _emitted

WIDTH, LENGTH, TAGS = 16, 8, 4


@dataclass(frozen=True, eq=False)
class Model:
    """What `_emitted` reads of a model."""

    graph: Graph
    sequence_length: int = LENGTH
    intents: int = 1
    slots: int = TAGS
    ignore_index: int | None = None


def count_of(layers: int, stem: str = "blocks.") -> int:
    """Return the number of instructions of a model of dense layers with norms and residuals."""
    shapes = {"table.weight": (20, WIDTH), "head.weight": (TAGS, WIDTH), "head.bias": (TAGS,)}
    names = [f"{stem}{n}" for n in range(layers)]
    for name in names:
        shapes |= {f"{name}.norm.{part}": (WIDTH,) for part in ("weight", "bias")}
        shapes |= {f"{name}.dense.weight": (WIDTH, WIDTH), f"{name}.dense.bias": (WIDTH,)}
    graph = Graph(shapes, LENGTH)
    x = graph.embedding("table")
    for name in names:
        y = graph.norm(x, f"{name}.norm", f"{name}.norm.weight", f"{name}.norm.bias")
        x = graph.add(x, graph.linear(y, f"{name}.dense"), f"{name}.add")
    graph.linear(x, "head")
    graph.classify(graph.operations[-1], graph.rows(x, 1, graph.tokens - 1), SLOTS)
    return sum(map(len, _emitted(Model(graph), "bidirectional", WINDOW, False).sections))


def test_the_layers_that_a_refusal_names_fit_and_more_do_not(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(lowering.Lowering, "fit", lambda *args: pytest.fail("banks are searched"))
        with pytest.raises(DoesNotFit) as refused:
            count_of(300)
    found = re.search(
        r"^the program has at least ([\d,]+) instructions, the machine takes 4,096: choose fewer encoders; there is "
        r"space for (\d+) of 300 layers of blocks \((\d+) instructions each\) "
        r"or the first \d+ of 300 layers of blocks frozen, and all before them$",
        str(refused.value),
    )
    least, fewer, each = (int(number.replace(",", "")) for number in found.groups())
    assert each == pytest.approx(count_of(41) - count_of(40), abs=1)
    count = count_of(fewer)
    assert M.PROGRAM_DEPTH - each < count <= M.PROGRAM_DEPTH
    assert least <= count + (each + 1) * (300 - fewer)
    with pytest.raises(DoesNotFit, match="instructions"):
        count_of(fewer + 1)


def test_a_model_without_layers_that_repeat_is_refused_with_its_number():
    with pytest.raises(
        DoesNotFit, match=r"at least [\d,]+ instructions, the machine takes 4,096: choose fewer encoders$"
    ):
        count_of(300, "block_")
