"""The model: configuration, sizes, both formats, against a forward pass of the formulas in NumPy."""

import json
import math
import re
from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest
import torch

from bttlab.model import ModelConfig, Optimizer, Transformer, initial_parameters, loss
from bttlab.model.choices import ACTIVATIONS, OPTIMIZERS, OptimizerName
from bttlab.tensor import FLOWS
from bttlab.util.errors import BttlabError

from conftest import ROOT

SMALL = ModelConfig(
    encoders=2,
    sequence_length=8,
    hidden_size=24,
    heads=3,
    vocabulary_size=30,
    intents=5,
    slots=7,
    linear_out_modes=(2, 3, 4),
    linear_in_modes=(4, 3, 2),
    linear_rank=3,
    embedding_row_modes=(2, 3, 5),
    embedding_column_modes=(2, 3, 4),
    embedding_rank=4,
)
TOKENS = np.array([2, 17, 5, 29, 5])


def as_dense(model: Transformer) -> dict[str, np.ndarray]:
    """The parameters of the dense model with the same matrices as a tensor model."""
    parameters = {}
    for name, value in model.state_dict().items():
        train = re.match(r"(.*)\.cores\.(\d+)$", name)
        if train is None:
            parameters[name] = value.numpy()
        elif train[2] == "0":
            parameters[f"{train[1]}.weight"] = model.get_submodule(train[1]).to_dense().detach().numpy()
    return parameters


def numpy_forward(p: dict[str, np.ndarray], config: ModelConfig, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The model's formulas, written down plainly."""

    def norm(x, name):
        centred = x - x.mean(1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x, name):
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    activate = {
        "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
        "relu": lambda x: np.maximum(x, 0),
        "silu": lambda x: x / (1 + np.exp(-x)),
        "tanh": np.tanh,
    }[config.activation]

    x = norm(p["embedding.word.weight"][tokens] + p["embedding.position.weight"][: len(tokens)], "embedding.norm")
    size = config.hidden_size // config.heads
    for i in range(config.encoders):
        name = f"encoders.{i}"
        q, k, v = (linear(x, f"{name}.{part}") for part in ("query", "key", "value"))
        attended = np.empty_like(x)
        for head in range(config.heads):
            columns = slice(head * size, (head + 1) * size)
            weights = np.exp(q[:, columns] @ k[:, columns].T / math.sqrt(size))
            attended[:, columns] = weights / weights.sum(1, keepdims=True) @ v[:, columns]
        h = norm(x + linear(attended, f"{name}.output"), f"{name}.attention_norm")
        x = norm(h + linear(activate(linear(h, f"{name}.first")), f"{name}.second"), f"{name}.feed_forward_norm")
    intent = linear(np.tanh(linear(x[:1], "intent_pooler")), "intent_head")[0]
    return intent, linear(np.tanh(linear(x[1:], "slot_pooler")), "slot_head")


def randomise(model: Transformer) -> None:
    """Give every parameter, biases and norms as well, a value that shows."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_tensor_and_dense_models_and_the_formulas_agree(flow, activation):
    config = replace(SMALL, activation=activation)
    tensor = Transformer(config, flow).double()
    randomise(tensor)
    dense = Transformer(replace(config, format="dense")).double()
    dense.load(as_dense(tensor))
    intent, slots = torch.tensor(3), torch.tensor([1, 6, 0, 2])
    expected = numpy_forward(as_dense(tensor), config, TOKENS)
    log_softmax = [logits - np.log(np.exp(logits).sum(-1, keepdims=True)) for logits in expected]
    expected_loss = -log_softmax[0][3] - log_softmax[1][range(4), slots.numpy()].mean()
    for model in (tensor, dense):
        found = model(torch.from_numpy(TOKENS))
        assert [tuple(logits.shape) for logits in found] == [(5,), (4, 7)]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b, rtol=1e-10, atol=1e-12)
        assert loss(*found, intent, slots).item() == pytest.approx(expected_loss, rel=1e-10)


@pytest.mark.parametrize("format", ["dense", "tensor"])
def test_initial_parameters_have_the_deviations_they_claim(format):
    config = ModelConfig(format=format)
    seeds = range(3)
    matrices = {
        "embedding.word": 0.02,
        "embedding.position": 0.02,
        "encoders.1.first": math.sqrt(2 / 1536),
        "slot_pooler": math.sqrt(2 / 1536),
        "slot_head": math.sqrt(2 / (768 + 122)),
    }
    squares, draws = dict.fromkeys(matrices, 0.0), set()
    for seed in seeds:
        parameters = initial_parameters(config, seed)
        if format == "tensor":
            parameters = as_dense(Transformer(config, seed=seed))
        draws.add(parameters["intent_head.weight"].tobytes())
        for name in matrices:
            squares[name] += float(np.square(parameters[f"{name}.weight"]).mean()) / len(seeds)
        assert not parameters["intent_head.bias"].any()
        assert (parameters["embedding.norm.weight"] == 1).all()
    assert len(draws) == len(seeds)
    for name, std in matrices.items():
        assert math.sqrt(squares[name]) == pytest.approx(std, rel=0.15), name


@pytest.mark.parametrize(
    "made, message",
    [
        (lambda: replace(SMALL, format="sparse"), "format is 'sparse': it must be 'tensor' or 'dense'"),
        (lambda: replace(SMALL, encoders=2.0), "encoders is 2.0: it must be a valid integer"),
        (lambda: replace(SMALL, heads=5), "hidden_size 24 is not divisible by heads 5"),
        (lambda: replace(SMALL, hidden_size=30), r"linear_out_modes \(2, 3, 4\): 2 x 3 x 4 = 24, not 30"),
        (lambda: replace(SMALL, embedding_column_modes=(4, 6)), "differ in number"),
        (
            lambda: ModelConfig(**{"encoder": 2}),
            "encoder is not a setting of ModelConfig; do you mean encoders",
        ),
        (lambda: ModelConfig(ranks={"encoders.2.query": 6}), "'encoders.2.query', which is no layer"),
        (lambda: ModelConfig(ranks={"slot_pooler": (3, 4)}), "has 2 entries: 6 cores have 5 internal ranks"),
        (lambda: ModelConfig(ranks=7), "give layers and their ranks"),
        (lambda: ModelConfig().with_hidden_size(100), "hidden_size 100 is not divisible by heads 12"),
        (lambda: ModelConfig.of_sizes({"hidden_size": "64"}), "hidden_size is '64': it must be an integer of 1 to"),
        (lambda: ModelConfig.of_sizes({"vocabulary_size": "9"}), "vocabulary is '9': it must be an integer of 1 to"),
        (lambda: Optimizer(momentum=1.0), "momentum is 1.0: it must be less than or equal to 0.99"),
    ],
)
def test_what_is_refused(made, message):
    with pytest.raises(BttlabError, match=message):
        made()


def test_layers_have_ranks_of_their_own():
    config = ModelConfig(ranks={"slot_pooler": (3, 4, 5, 6, 7), "embedding.word": (20, 30), "encoders.0.query": 6})
    assert config.ranks == (("embedding.word", (20, 30)), ("encoders.0.query", 6), ("slot_pooler", (3, 4, 5, 6, 7)))
    shapes = config.parameter_shapes()
    assert shapes["slot_pooler.cores.2"] == (4, 8, 5) and shapes["embedding.word.cores.1"] == (20, 10, 8, 30)
    assert shapes["encoders.0.query.cores.1"] == (6, 8, 6) and shapes["encoders.1.query.cores.1"] == (12, 8, 12)
    assert ModelConfig(**json.loads(json.dumps(config.to_dict()))) == config
    assert {name: p.shape for name, p in Transformer(config).named_parameters()} == shapes
    assert "ranks" not in ModelConfig().to_dict()


def test_optimizers_are_those_of_the_machine_and_of_torch():
    enumerated = re.search(r"enum OptimizerName \{ (.*) \};", (ROOT / "hls_src/processor/state.h").read_text())
    assert tuple(OPTIMIZERS) == get_args(OptimizerName) == tuple(name.lower() for name in enumerated[1].split(", "))
    used = [constant for rule in OPTIMIZERS.values() for constant in rule.constants]
    assert sorted([*used, "name", "batch_size"]) == sorted(field.name for field in fields(Optimizer))
    for name, moments in (("sgd", 0), ("momentum", 1), ("adamw", 2)):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = Optimizer(name)
        kind = torch.optim.AdamW if name == "adamw" else torch.optim.SGD
        constants = {"momentum": optimizer.momentum} if name == "momentum" else {}
        of_torch = kind([parameter], lr=0.1, **constants)
        parameter.grad = torch.ones(3)
        of_torch.step()
        states = [value for value in of_torch.state[parameter].values() if torch.is_tensor(value) and value.ndim]
        assert len(optimizer.moments) == len(states) == moments
        assert (
            optimizer.decay
            == {"sgd": 0.0, "momentum": 0.9, "adamw": of_torch.param_groups[0].get("betas", [0])[0]}[name]
        )
