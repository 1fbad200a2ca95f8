"""The program of a layer alone: a graph with inputs and outputs instead of tokens and losses.

For y = f(x) it takes x, dy and the parameters, and returns y, dx and the gradients. It has no loss and no update, so
PREDICT runs it: its section FORWARD has the forward and the backward pass. LOAD and STORE transfer what it takes and
returns.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from bttlab.compiler.builder import LANES, Builder
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.graph import Graph
from bttlab.compiler.hazards import find_hazards, written_vectors
from bttlab.compiler.instruction import At, Instruction, max_of
from bttlab.compiler.lowering import Lowering
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import Block, matrix_block, pack, unpack
from bttlab.compiler.operation import Operation
from bttlab.compiler.program import CANDIDATES, NO_OFFSETS, Flow, Limits, Program, tables_of, transfers
from bttlab.compiler.schedule.order import OrderSearch
from bttlab.compiler.timing import time_program
from bttlab.tensor.order import Order
from bttlab.tensor.shapes import tt_shapes

NAME = "layer"
CORES = tuple(f"G{k}" for k in range(1, 7))
SHORT = {f"{NAME}.cores.{k}": core for k, core in enumerate(CORES)} | {f"{NAME}.bias": "b"}  # names of parameters
SMALLER = "fewer tokens or smaller ranks, or an order whose intermediates are smaller"


@dataclass(frozen=True)
class LayerShape:
    """A linear layer in tensor-train format.

    It has three modes at each end, and five ranks between the six cores.
    """

    out_modes: tuple[int, ...]
    in_modes: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.out_modes) != 3 or len(self.in_modes) != 3:
            raise ProgramError(
                f"the modes are {self.out_modes} and {self.in_modes}: the card takes trains of three modes at each end"
            )
        for features in (self.in_features, self.out_features):
            if features % LANES:
                raise ProgramError(f"the layer has {features} features: the card takes multiples of {LANES}")

    @property
    def in_features(self) -> int:
        return math.prod(self.in_modes)

    @property
    def out_features(self) -> int:
        return math.prod(self.out_modes)

    @property
    def core_shapes(self) -> list[tuple[int, int, int]]:
        """Shapes (r_prev, n, r_next) of G1 to G6."""
        return tt_shapes(self.out_modes, self.in_modes, self.ranks)


@dataclass(frozen=True, eq=False)
class LayerProgram(Program):
    tokens: int
    # What LOAD and STORE transfer, in order: x, dy, G1, b; y, dx, dG1, db; padding has an empty name.
    inputs: list[Block]
    outputs: list[Block]
    order: Order | None  # order of contraction of a tensor-train layer
    constants: Mapping[str, np.ndarray]  # inputs that are always the same

    def has_tokens(self, instruction: Instruction) -> bool:
        """Return True if an operand of an engine's instruction depends on the tokens."""
        product = instruction.label[2].partition(" = ")[2].split()
        indices = self.order.indices() if self.order else {}
        return any("t" in indices[name if name in indices else name[1:]] for name in product)

    def pack(self, tensors: dict[str, np.ndarray]) -> np.ndarray:
        """Return the inputs in the format of LOAD, float32 of shape (vectors, LANES)."""
        values = {**self.constants, **tensors}
        return pack((block, values.get(block.name)) for block in self.inputs)

    def unpack(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        tensors = {block.name: np.zeros(block.shape, np.float32) for block in self.outputs if block.name}
        unpack(memory, ((block, tensors.get(block.name)) for block in self.outputs))
        return tensors

    def hazards(self) -> list[str]:
        """Return the program's hazards: none, if the compiler is correct."""
        token_offsets, loaded = np.zeros((M.OFFSET_TABLES, self.tokens), int), written_vectors(self.load)
        found = find_hazards(self.forward, self.tokens, token_offsets, False, loaded=loaded)
        return [hazard.text for hazard in found]


def compile_layer(shape: LayerShape, tokens: int, flow: Flow = "bidirectional") -> LayerProgram:
    """Return the program of a layer, with the same instructions as in a model's program (`linear`).

    `flow`: as for `bttlab.compiler.program.Options`.
    Raise `ProgramError` if the layer does not fit the machine.
    """
    if not 1 <= tokens <= M.SEQUENCE:
        raise ProgramError(f"{tokens} tokens: the card takes 1 to {M.SEQUENCE}")
    shapes = {f"{NAME}.cores.{k}": core for k, core in enumerate(shape.core_shapes)}
    graph = Graph(shapes | {f"{NAME}.bias": (shape.out_features,)}, tokens, tokens)
    graph.output(graph.linear(graph.input("x", shape.in_features), NAME), "y")
    return compile_graph(graph, flow)


def compile_graph(graph: Graph, flow: Flow = "bidirectional") -> LayerProgram:
    """Return the program of a graph of inputs and outputs (`Graph.input`, `Graph.output`) with a number of tokens."""
    if flow == "auto":
        programs = [compile_graph(graph, candidate) for candidate in CANDIDATES]
        return min(programs, key=lambda program: time_program(program.forward, program.tokens, False).cycles)
    try:
        model = Lowering(graph, flow)
        model.fit(max_of(graph.tokens))
        model.builder.instructions = [*model.forward, *model.backward]
    except DoesNotFit as error:
        raise DoesNotFit(error.what, SMALLER) from None
    model.assign()
    parameters = sorted(model.layout.blocks, key=lambda block: block.buffer.number)
    parameters = [replace(block, name=SHORT.get(block.name, block.name)) for block in parameters]

    def matrix(op: Operation, name: str, place: At) -> Block:
        buffer = model.builder.buffer_at(place)
        return matrix_block(name, buffer, max_of(op.output.tokens), op.output.features)

    loaded = [matrix(op, op.names[0], op.loaded) for op in model.boundary]
    stored = [matrix(op, op.names[1], op.stored) for op in reversed(model.boundary)]
    trained = (block for block in parameters if block.name not in graph.constants)
    stored += (replace(block, name=f"d{block.name}", buffer=block.buffer.gradient) for block in trained)
    return assemble(model.builder, max_of(graph.tokens), loaded + parameters, stored, model.order, graph.constants)


def assemble(
    builder: Builder,
    tokens: int,
    inputs: list[Block],
    outputs: list[Block],
    order: Order | None = None,
    constants: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> LayerProgram:
    (instructions,) = OrderSearch([builder.instructions], NO_OFFSETS, tokens).ordered()
    vectors = max(sum(block.vectors for block in blocks) for blocks in (inputs, outputs))
    filling = outputs[-1]  # padding goes to and from the last gradient
    for blocks in (inputs, outputs):  # the machine stores as many vectors as it loads
        count, rest = divmod(vectors - sum(block.vectors for block in blocks), filling.vectors)
        sizes = [filling.vectors] * count + [rest] * bool(rest)
        blocks += [matrix_block("", filling.buffer, size, LANES) for size in sizes]
    sections = instructions, [], [], transfers(inputs, into=True), transfers(outputs, into=False), []
    return LayerProgram(
        tables_of(builder), Limits(tokens), *sections, vectors, tokens, inputs, outputs, order, constants
    )
