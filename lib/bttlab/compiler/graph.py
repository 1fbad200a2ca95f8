"""The graph of a model: matrices of (tokens, features), and the operations that compute them.

A graph comes from a configuration (`graph_of_config`) or from a PyTorch module (`bttlab.compiler.trace`). Parameters
have the names that they have in the module. `lowering` turns operations into instructions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.instruction import MACHINE, Bound, Register, max_of
from bttlab.model.config import ModelConfig

Shapes = Mapping[str, tuple[int, ...]]
INTENT, SLOTS = "intent", "slot"  # losses: of one label for the sample, and of a label for each token but the first


@dataclass(eq=False)
class Matrix:
    """A matrix of the graph.

    Attributes
    ----------
    tokens : int or Register
        Number of rows.
    base : Matrix, optional
        The matrix of which this one is a range of rows, from `first` on.
    """

    name: str
    tokens: Bound
    features: int
    base: "Matrix | None" = None
    first: int = 0

    @property
    def vectors(self) -> int:
        """Vectors of a row."""
        return -(-self.features // MACHINE.LANES)


@dataclass(eq=False)
class Operation:
    """An operation of the graph.

    Attributes
    ----------
    kind : str
        "embedding", "position", "add", "norm", "linear", "dense", "function", "attention" or "classifier".
    name : str
        Its place in the module.
    options : dict
        Its other arguments.
    """

    kind: str
    name: str
    inputs: tuple[Matrix, ...]
    output: Matrix
    options: dict = field(default_factory=dict)


class Graph:
    """A model's operations, in topological order.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Shapes of the parameters.
    sequence_length : int
        Tokens of the longest sample.
    """

    def __init__(self, shapes: Shapes, sequence_length: int):
        self.shapes, self.sequence_length = dict(shapes), sequence_length
        self.operations: list[Operation] = []
        self.tokens = Register(0, 0, 1, sequence_length)

    def append(self, kind: str, name: str, inputs, tokens: Bound, features: int, **options) -> Matrix:
        """Append an operation and return its output."""
        output = Matrix(name, tokens, features)
        self.operations.append(Operation(kind, name, tuple(inputs), output, options))
        return output

    def embedding(self, name: str) -> Matrix:
        """Append the embedding of the sample's tokens: a table in TTM format, or a dense one."""
        cores = [self.shapes[n] for n in core_names(self.shapes, name)]
        features = 1
        for core in cores:
            features *= core[2]
        return self.append("embedding", name, (), self.tokens, features if cores else self.shapes[f"{name}.weight"][1])

    def position(self, x: Matrix, parameter: str) -> Matrix:
        """Append x + the first rows of a table."""
        return self.append("position", parameter, (x,), x.tokens, x.features)

    def add(self, a: Matrix, b: Matrix, name: str = "add") -> Matrix:
        """Append a + b."""
        return self.append("add", name, (a, b), a.tokens, a.features)

    def norm(self, x: Matrix, name: str, epsilon: float = 1e-5, centred: bool = True) -> Matrix:
        """Append LayerNorm; RMSNorm if not `centred`."""
        return self.append("norm", name, (x,), x.tokens, x.features, epsilon=epsilon, centred=centred)

    def linear(self, x: Matrix, name: str) -> Matrix:
        """Append x W^T + b, W in TT format or dense."""
        cores = core_names(self.shapes, name)
        features = 1
        for core in cores[: len(cores) // 2]:
            features *= self.shapes[core][1]
        features = features if cores else self.shapes[f"{name}.weight"][0]
        if not cores:
            bias = f"{name}.bias" if f"{name}.bias" in self.shapes else ""
            return self.append("dense", name, (x,), x.tokens, features, weight=f"{name}.weight", bias=bias, first=0)
        return self.append("linear", name, (x,), x.tokens, features)

    def function(self, x: Matrix, function: str, name: str) -> Matrix:
        """Append an activation, element by element."""
        return self.append("function", name, (x,), x.tokens, x.features, function=function)

    def attention(self, q: Matrix, k: Matrix, v: Matrix, heads: int, name: str, causal: bool = False) -> Matrix:
        """Append softmax(q k^T / sqrt(head size)) v for each head; if `causal`, over tokens up to the query's own."""
        return self.append("attention", name, (q, k, v), q.tokens, q.features, heads=heads, causal=causal)

    def rows(self, x: Matrix, first: int, tokens: Bound) -> Matrix:
        """Return a view of the rows of a matrix from `first` on."""
        return Matrix(x.name, tokens, x.features, x.base or x, x.first + first)

    def classifier(self, x: Matrix, name: str, loss: str) -> Matrix:
        """Append a dense layer and the cross-entropy of its logits, of the loss "intent" or "slot"."""
        weight, options = f"{name}.weight", {"bias": f"{name}.bias", "first": 0, "loss": loss}
        return self.append("classifier", name, (x,), x.tokens, self.shapes[weight][0], weight=weight, **options)

    def drop_unused(self) -> None:
        """Remove operations whose output is not read."""
        while True:
            used = [op for op in self.operations if op.kind == "classifier" or self.users(op.output)]
            if len(used) == len(self.operations):
                return
            self.operations = used

    @property
    def losses(self) -> dict[str, Operation]:
        """The classifiers by their losses."""
        return {one.options["loss"]: one for one in self.operations if one.kind == "classifier"}

    def users(self, matrix: Matrix) -> list[Operation]:
        """Return the operations that read a matrix, or rows of it."""
        return [one for one in self.operations if any(m is matrix or m.base is matrix for m in one.inputs)]


def core_names(shapes: Shapes, layer: str) -> list[str]:
    """Return the names of a layer's cores; none if it is dense."""
    count = 0
    while f"{layer}.cores.{count}" in shapes:
        count += 1
    return [f"{layer}.cores.{k}" for k in range(count)]


def labelled(tokens: Register) -> Register:
    """Return the number of tokens without the first."""
    return Register(-1, 0, 0, max_of(tokens) - 1)


def graph_of_config(config: ModelConfig, shapes: Shapes | None = None) -> Graph:
    """Return the graph of the paper's transformer: what `bttlab.model.Transformer` computes.

    Raises
    ------
    ProgramError
        If the model is dense.
    """
    if config.format != "tensor":
        raise ProgramError("the model is dense: the card trains tensor-compressed ones; choose format tensor")
    graph = Graph(shapes or config.parameter_shapes(), config.sequence_length)
    x = graph.position(graph.embedding("embedding.word"), "embedding.position.weight")
    x = graph.norm(x, "embedding.norm")
    for e in range(config.encoders):
        name = f"encoders.{e}"
        q, k, v = (graph.linear(x, f"{name}.{part}") for part in ("query", "key", "value"))
        context = graph.attention(q, k, v, config.heads, f"{name}.attention")
        h = graph.norm(graph.add(x, graph.linear(context, f"{name}.output")), f"{name}.attention_norm")
        activated = graph.function(graph.linear(h, f"{name}.first"), config.activation, f"{name}.{config.activation}")
        x = graph.norm(graph.add(h, graph.linear(activated, f"{name}.second")), f"{name}.feed_forward_norm")
    for loss, rows in ((INTENT, graph.rows(x, 0, 1)), (SLOTS, graph.rows(x, 1, labelled(graph.tokens)))):
        pooled = graph.function(graph.linear(rows, f"{loss}_pooler"), "tanh", f"{loss}_head")
        graph.classifier(pooled, f"{loss}_head", loss)
    return graph
