"""The program of one linear layer alone: inputs x, dy and the cores; outputs y, dx and the gradients.

It has no loss and no update, so PREDICT runs it: its section FORWARD has the forward and the backward pass. LOAD
transfers the inputs, STORE the outputs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bttlab.compiler.banks import GRADIENT_OF, assign_banks
from bttlab.compiler.buffers import Buffer
from bttlab.compiler.builder import LANES, Builder, vectors_for
from bttlab.compiler.dependencies import set_waits
from bttlab.compiler.errors import DoesNotFit, ProgramError
from bttlab.compiler.hazards import find_hazards, written_vectors
from bttlab.compiler.instruction import Instruction, Level, at
from bttlab.compiler.layout import Block, Layout
from bttlab.compiler.linear import LinearLayers
from bttlab.compiler.machine import M
from bttlab.compiler.order import ordered
from bttlab.compiler.program import Program
from bttlab.tensor.order import Order
from bttlab.tensor.shapes import tt_shapes

NAME = "layer"
CORES = tuple(f"G{k}" for k in range(1, 7))
SMALLER = "fewer tokens or smaller ranks, or an order whose intermediates are smaller"
NO_OFFSETS = (0,) * M.OFFSET_TABLES


@dataclass(frozen=True)
class LayerShape:
    """A linear layer in tensor-train format.

    Attributes
    ----------
    out_modes, in_modes : tuple of int
        Three modes at each end.
    ranks : tuple of int
        The five ranks between the six cores.
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
        """Features of x."""
        return math.prod(self.in_modes)

    @property
    def out_features(self) -> int:
        """Features of y."""
        return math.prod(self.out_modes)

    @property
    def core_shapes(self) -> list[tuple[int, int, int]]:
        """Shapes (r_prev, n, r_next) of G1 to G6."""
        return tt_shapes(self.out_modes, self.in_modes, self.ranks)


@dataclass(frozen=True)
class Transfer:
    """An input or output tensor.

    Attributes
    ----------
    name : str
        "x", "dy", "G1", "b"; "y", "dx", "dG1", "db"; empty for padding.
    block : Block
        Its place and layout.
    """

    name: str
    block: Block


@dataclass
class LayerModel:
    """Stand-in for the model in a layer's program."""

    builder: Builder
    sequence_length: int
    transfer_vectors: int
    intents: int = 1
    slots: int = 1

    @property
    def config(self) -> "LayerModel":
        """Limits of the sample's record."""
        return self

    @property
    def layout(self) -> "LayerModel":
        """Size of the transfers."""
        return self

    @property
    def vectors(self) -> int:
        """A third of the vectors that are loaded: a model's program loads parameters and two moments."""
        return -(-self.transfer_vectors // 3)


@dataclass(eq=False)
class LayerProgram(Program):
    """The program of a layer for a number of tokens.

    Attributes
    ----------
    shape : LayerShape
    inputs, outputs : list of Transfer
        In the order of LOAD and STORE.
    order : Order, optional
        Order of contraction, if there is a layer.
    """

    shape: LayerShape
    tokens: int
    inputs: list[Transfer]
    outputs: list[Transfer]
    order: Order | None

    @property
    def offset_span(self) -> tuple[int, ...]:
        """Zeros: no instruction has a token offset."""
        return NO_OFFSETS

    def has_tokens(self, instruction: Instruction) -> bool:
        """Return True if an operand of an engine's instruction depends on the tokens."""
        product = instruction.label[2].partition(" = ")[2].split()
        indices = self.order.indices() if self.order else {}
        return any("t" in indices[name if name in indices else name[1:]] for name in product)

    def pack(self, tensors: dict[str, np.ndarray]) -> np.ndarray:
        """Return the inputs in the format of LOAD, float32 of shape (vectors, LANES)."""
        return np.concatenate([_packed(t.block, tensors.get(t.name)) for t in self.inputs])

    def unpack(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Return the outputs from the format of STORE."""
        tensors, first = {}, 0
        for transfer in self.outputs:
            tensors[transfer.name] = np.zeros(transfer.block.shape, np.float32)
            transfer.block.read(memory[first : first + transfer.block.vectors], tensors[transfer.name])
            first += transfer.block.vectors
        return tensors

    def hazards(self) -> list[str]:
        """Return the program's hazards: none, if the compiler is correct."""
        token_offsets = np.zeros((M.OFFSET_TABLES, self.tokens), int)
        return [
            hazard.text
            for hazard in find_hazards(
                self.forward, self.tokens, token_offsets, False, loaded=written_vectors(self.load)
            )
        ]


def _packed(block: Block, tensor: np.ndarray | None) -> np.ndarray:
    memory = np.zeros((block.vectors, LANES), np.float32)
    if tensor is not None:
        block.write(memory, np.asarray(tensor, np.float32).reshape(block.shape))
    return memory


def matrix_block(name: str, bank: int, base: int, rows: int, columns: int) -> Block:
    """Return the block of a matrix that is stored in a bank row by row."""
    buffer = Buffer(name, rows * vectors_for(columns), bank=bank, base=base)
    return Block(name, (rows, columns), (0, 1), buffer, columns, rows, rows, 0, rows)


def check_tokens(tokens: int) -> None:
    """Check that the machine takes samples of this length."""
    if not 1 <= tokens <= M.SEQUENCE:
        raise ProgramError(f"{tokens} tokens: the card takes 1 to {M.SEQUENCE}")


def compile_layer(shape: LayerShape, tokens: int, flow: str | Sequence[int] | Order = "bidirectional") -> LayerProgram:
    """Return the program of a layer, with the same instructions as in a model's program (`linear`).

    Parameters
    ----------
    shape : LayerShape
    flow : str, tuple of int or Order
        As for `bttlab.compiler.program.compile_program`.

    Raises
    ------
    ProgramError
        If the layer does not fit the machine.
    """
    check_tokens(tokens)
    try:
        return _compile(shape, tokens, flow)
    except DoesNotFit as error:
        raise DoesNotFit(error.what, SMALLER) from None


def _compile(shape: LayerShape, tokens: int, flow: str | Sequence[int] | Order) -> LayerProgram:
    b = Builder()
    core_names = [f"{NAME}.cores.{k}" for k in range(6)]
    shapes = dict(zip(core_names, shape.core_shapes, strict=True)) | {f"{NAME}.bias": (shape.out_features,)}
    layout = Layout(b, shapes)
    bias = layout.place(f"{NAME}.bias")
    linear = LinearLayers(b, layout, {NAME: tokens}, shapes, flow, has_scratch=False)
    matrices = {
        name: Block(name, (tokens, features), (0, 1), buffer, features, tokens, tokens, 0, tokens)
        for name, features in (
            ("x", shape.in_features),
            ("dy", shape.out_features),
            ("y", shape.out_features),
            ("dx", shape.in_features),
        )
        for buffer in [b.new_buffer(name, tokens * vectors_for(features), is_persistent=True)]
    }
    linear.divide_buffers()
    x, dy, y, dx = (matrices[name].where() for name in ("x", "dy", "y", "dx"))
    b.stage = "FP"
    linear.forward(0, x, tokens, y)
    b.stage = "BP"
    linear.backward(0, dy, x, tokens, dx)
    assign_banks(b.made, b.instructions, tokens, {*matrices, *shapes})
    parameters = dict(zip(CORES, map(layout.of, core_names), strict=True)) | {"b": bias}
    inputs = [matrices["x"], matrices["dy"], *parameters.values()]
    outputs = [matrices["y"], matrices["dx"], *(gradient_of(block) for block in parameters.values())]
    names = list(parameters)
    return assemble(
        b,
        shape,
        tokens,
        [Transfer(n, block) for n, block in zip(["x", "dy", *names], inputs, strict=True)],
        [Transfer(n, block) for n, block in zip(["y", "dx", *(f"d{n}" for n in names)], outputs, strict=True)],
        linear.layers[0].order,
    )


def gradient_of(block: Block) -> Block:
    """Return the block of a parameter's gradient."""
    own = block.buffer
    return replace(block, buffer=Buffer(own.name, own.vectors, bank=GRADIENT_OF[own.bank], base=own.base))


def assemble(
    builder: Builder,
    shape: LayerShape,
    tokens: int,
    inputs: list[Transfer],
    outputs: list[Transfer],
    order: Order | None = None,
) -> LayerProgram:
    """Return the program of the builder's instructions, scheduled and with waits."""
    instructions = ordered(builder.instructions, NO_OFFSETS, tokens, builder.scratch)
    set_waits(instructions, NO_OFFSETS)
    vectors = max(sum(t.block.vectors for t in transfers) for transfers in (inputs, outputs))
    for transfers in (inputs, outputs):  # the machine stores as many vectors as it loads
        transfers += _filling(vectors - sum(t.block.vectors for t in transfers), outputs[-1].block)
    load, store = _copies(inputs, into=True), _copies(outputs, into=False)
    model = LayerModel(builder, tokens, vectors)
    return LayerProgram(model, instructions, [], [], load, store, [], shape, tokens, inputs, outputs, order)


def _filling(vectors: int, block: Block) -> list[Transfer]:
    """Return padding transfers of a number of vectors, to and from the block of a gradient."""
    sizes = [block.vectors] * (vectors // block.vectors) + [vectors % block.vectors]
    return [Transfer("", matrix_block("", block.bank, block.base, size, LANES)) for size in sizes if size]


def _copies(transfers: list[Transfer], into: bool) -> list[Instruction]:
    b = Builder()
    b.stage, b.layer = "IO", "transfer"
    for transfer in transfers:
        block = transfer.block
        for first in range(0, block.vectors, M.TRANSFER_VECTORS):
            loops = [Level("w", min(block.vectors - first, M.TRANSFER_VECTORS)), *(Level(name, 1) for name in "abc")]
            chip = at(f"bank {block.bank}", block.base + first, w=1)
            if into:
                b.vector(M.COPY, f"load {transfer.name}", loops, at(f"bank {M.IN_BANK}", 0, w=1), r0=chip)
            else:
                b.vector(M.COPY, f"store {transfer.name}", loops, chip, r0=at(f"bank {M.OUT_BANK}", 0, w=1))
    return b.instructions
