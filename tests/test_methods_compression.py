"""The methods lab's compression of gradients, ranks, subspaces and core entries: what makes each what it is."""

from dataclasses import replace

import pytest
import torch

from bttlab.data import load_corpus
from bttlab.methods import MethodError, Setting, Training, parse
from bttlab.methods.memory import flat
from bttlab.methods.projected import ProjectedAdamW
from tiny_runs import CONFIG, write_corpus

DENSE = replace(CONFIG, format="dense")
TENSOR = "tensor:rank=4,embedding_rank=4"


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    corpus = load_corpus(write_corpus(tmp_path_factory.mktemp("data") / "tiny"))
    return Setting(corpus, DENSE, samples=40, batch=4)


def steps(training, count):
    """Train some steps; returns the parameters by name as before the last of them."""
    for _ in range(count):
        before = {name: tensor.detach().clone() for name, tensor in training.model.named_parameters()}
        training.step(next(training._all_batches()))
    return before


def state_numbers(training):
    return sum(tensor.numel() for tensor in flat(dict(training.optimizer.state)))


# --- gradient compression


def test_galore_updates_lie_in_a_subspace_of_its_rank_until_the_next_choice(setting):
    training = Training(setting, parse("galore:rank=3,every=2"))
    name = "encoders.0.query.weight"
    weight = training.model.get_parameter(name)
    seen = []
    for _ in range(5):
        before = steps(training, 1)[name]
        decayed = before * (1 - training.optimizer.param_groups[0]["lr"] * 0.01)
        seen.append((weight.detach() - decayed).double())
    pair, across = torch.cat(seen[2:4]), torch.cat(seen[1:3])
    assert torch.linalg.matrix_rank(pair, rtol=1e-3) == 3  # two updates in one subspace
    assert torch.linalg.matrix_rank(across, rtol=1e-3) > 3


def test_galore_keeps_the_moments_of_the_core_and_a_basis(setting):
    dense, galore = Training(setting), Training(setting, parse("galore:rank=2"))
    for training in (dense, galore):
        steps(training, 1)
    saved = 0
    for parameter in galore.trained:
        if parameter.ndim == 2 and min(parameter.shape) >= 4:
            rows, columns = parameter.shape
            saved += 2 * parameter.numel() - 2 * 2 * max(rows, columns) - 2 * min(rows, columns)
    counted = sum(state["step"].numel() for state in dense.optimizer.state.values())
    assert state_numbers(galore) == state_numbers(dense) - counted - saved


def test_galore_takes_the_steps_of_pytorch_optimizers():
    from pytorch_optimizer import GaLore

    torch.manual_seed(0)
    start, gradients = torch.randn(9, 6), torch.randn(5, 9, 6)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    folded = {"params": [ours], "shape": (9, 6), "ranks": (None, 2)}
    first = ProjectedAdamW([folded], lr=0.1, every=9, scale=0.5, eps=1e-12, weight_decay=0.0)
    group = {"rank": 2, "update_proj_gap": 9, "scale": 0.5, "projection_type": "std"}
    second = GaLore([{"params": [theirs], **group}], lr=0.1, eps=1e-12)
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        first.step()
        second.step()
    assert torch.linalg.vector_norm(ours - start) > 0.1
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_galore_and_plain_adamw_agree_where_nothing_is_projected(setting):
    galore, plain = Training(setting, parse("galore:rank=1000")), Training(setting)
    for training in (galore, plain):
        steps(training, 4)
    for (name, ours), theirs in zip(galore.model.named_parameters(), plain.model.parameters(), strict=True):
        if not name.endswith("key.bias"):  # softmax does not feel it: its gradient is rounding alone
            assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(
    "methods, name", [("{}", "encoders.0.first.weight"), (TENSOR + "+{}", "encoders.0.first.cores.2")]
)
def test_tensor_galore_updates_have_the_multilinear_rank_of_the_subspace(setting, methods, name, monkeypatch):
    monkeypatch.setattr("bttlab.methods.library.tensor_galore.LEAST", 10)
    training = Training(setting, parse(methods.format("tensor-galore:fraction=0.5")))
    parameter = training.model.get_parameter(name)
    group = next(group for group in training.optimizer.param_groups if group["params"][0] is parameter)
    before = steps(training, 2)[name]
    update = (parameter.detach() - before * (1 - group["lr"] * 0.01)).double().reshape(group["shape"])
    for mode, size in enumerate(group["shape"]):
        unfolding = update.movedim(mode, 0).reshape(size, -1)
        assert torch.linalg.matrix_rank(unfolding, rtol=1e-3) == max(1, size // 2)
    core = training.optimizer.state[parameter]["exp_avg"]
    assert core.shape == tuple(max(1, size // 2) for size in group["shape"])


def test_galore_leaves_cores_to_tensor_galore():
    with pytest.raises(MethodError, match="tensor and galore do not combine"):
        parse("tensor+galore")
    with pytest.raises(MethodError, match=r"fraction is 0\.0: it must be above 0"):
        parse("tensor-galore:fraction=0")
