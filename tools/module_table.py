"""Print the tables of docs/tensor.md: which layers and functions of PyTorch the card trains.

Layers are traced one by one; functions are those of the tracer's rules.
"""

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.functions import ACTIVATIONS
from bttlab.compiler.operation import Operation
from bttlab.compiler.trace import trace
from bttlab.compiler.trace.forms import FORMS
from bttlab.compiler.trace.names import COPIES, MOVES
from bttlab.compiler.trace.record import EXPANDED, RULES

PAGE = Path(__file__).parent.parent / "docs" / "tensor.md"
MARKS = "<!-- functions -->\n", "<!-- end -->\n"
WIDTH, TOKENS, WORDS = 32, 9, 20
WIDTHS = {  # arguments of layers that need some
    "Linear": (WIDTH, WIDTH),
    "LayerNorm": (WIDTH,),
    "RMSNorm": (WIDTH,),
    "GroupNorm": (3, TOKENS),
    "BatchNorm1d": (TOKENS,),
    "InstanceNorm1d": (TOKENS,),
    "Conv1d": (TOKENS, TOKENS, 1),
    "ConvTranspose1d": (TOKENS, TOKENS, 1),
    "AvgPool1d": (1,),
    "MaxPool1d": (1,),
    "LPPool1d": (2, 1),
    "AdaptiveAvgPool1d": (WIDTH,),
    "AdaptiveMaxPool1d": (WIDTH,),
    "ConstantPad1d": (0, 0.0),
    "GRU": (WIDTH, WIDTH),
    "LSTM": (WIDTH, WIDTH),
    "RNN": (WIDTH, WIDTH),
    "MultiheadAttention": (WIDTH, 2),
    "TransformerEncoderLayer": (WIDTH, 2, WIDTH),
    "TransformerDecoderLayer": (WIDTH, 2, WIDTH),
    "Bilinear": (WIDTH, WIDTH, WIDTH),
    "Softmax": (-1,),
    "LogSoftmax": (-1,),
    "Softmin": (-1,),
    "Threshold": (0.0, 0.0),
    "ZeroPad1d": (0,),
}
PLAIN = (  # the other layers that take activations (batch, tokens, features)
    "AlphaDropout CELU Dropout Dropout1d ELU FeatureAlphaDropout GELU Hardshrink Hardsigmoid Hardswish Hardtanh "
    "Identity LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6 RReLU SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh "
    "Tanhshrink"
)


class Around(nn.Module):
    """A layer between a table and a classifier of each token."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.table, self.first, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), layer
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Call the layer in the way of its kind."""
        x = self.first(self.table(tokens))
        count = {nn.MultiheadAttention: 3, nn.Bilinear: 2, nn.TransformerDecoderLayer: 2}.get(type(self.layer), 1)
        y = self.layer(*[x] * count)
        return self.head(y[0] if isinstance(y, tuple) else y)


def layers() -> dict[str, str]:
    """Return the layers, each with the reason why the card does not train it, or ""."""
    found = {"Embedding": ""}  # in `Around`
    for name in (*WIDTHS, *PLAIN.split()):
        options = {"batch_first": True} if "Transformer" in name or name in ("GRU", "LSTM", "RNN") else {}
        if name == "MultiheadAttention":
            options["batch_first"] = True
        torch.manual_seed(0)
        layer = getattr(nn, name)(*WIDTHS.get(name, ()), **options).eval()
        try:
            trace(Around(layer).eval(), TOKENS)
            found[name] = ""
        except ProgramError as error:
            found[name] = str(error)
    return found


def table() -> str:
    """Return the tables' lines."""
    steps = set(FORMS) - set(ACTIVATIONS) - set(EXPANDED)
    rules = set(RULES) - set(FORMS)
    found = layers()
    of_layers = [
        ("trained", {name for name, reason in found.items() if not reason}),
        ("refused", {name for name, reason in found.items() if reason}),
    ]
    of_functions = [
        ("recorded, with the conditions that a refusal names", rules | set(Operation.of_function)),
        ("activations, also written out", {n for n, a in ACTIVATIONS.items() if not a.is_part}),
        ("functions that are sums of activations", set(EXPANDED)),
        ("steps of an activation that is written out, or of a difference", steps),
        ("moves of elements: rows, columns of whole vectors, heads", MOVES - COPIES),
        ("no operation", COPIES),
    ]
    titles = "layers of torch.nn, in eval()", "functions of torch and of its layers"
    return "\n".join(_table(*one) for one in zip(titles, (of_layers, of_functions), strict=True))


def _table(title: str, rows: list[tuple[str, set[str]]]) -> str:
    lines = [f"| | {title} |", "|---|---|", *(f"| {kind} | {_listed(names)} |" for kind, names in rows)]
    return "".join(f"{line}\n" for line in lines)


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: (name.lower(), name)))


def page(text: str) -> str:
    """Return the page with the present tables."""
    begin, end = map(re.escape, MARKS)
    return re.sub(f"{begin}.*?{end}", lambda _: f"{MARKS[0]}{table()}{MARKS[1]}", text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
