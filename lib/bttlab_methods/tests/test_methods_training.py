"""Methods of training: optimizers, large batches, initialisation, growing; what each promises."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.data import load_corpus
from bttlab.model.loop import train_segments
from bttlab_methods import Batch, MethodError, Setting, Training, parse, run_methods
from bttlab_methods.registry import methods
from tiny_runs import CONFIG

DENSE = replace(CONFIG, format="dense", encoders=2)
TENSOR = "tensor:rank=2,embedding_rank=2"


@pytest.fixture(scope="module")
def setting(corpus):
    return Setting(load_corpus(corpus), DENSE, samples=100, batch=4)


def begin(setting, text) -> tuple[Training, Batch]:
    """A run before its first step, and a batch."""
    training = Training(setting, parse(text))
    return training, Batch(training.samples[np.arange(4)])


def values(training) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in training.model.parameters()]


def learn(training, batch, steps=1) -> None:
    """Take steps at the full learning rate."""
    for _ in range(steps):
        training.count = round(training.setting.warmup * training.setting.samples)
        training.step(batch)


def identity_error(training) -> float:
    x = torch.randn(2, 5, DENSE.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return max(float((encoder(x) - x).abs().max()) for encoder in training.model.encoders)


ALONE = [
    *("momentum", "adamw", "lion", "lamb", "lars", "linear-scaling", "rezero", "fixup", "skipinit", "t-fixup"),
    *("lottery-ticket", "width:factor=2", "stacking", "stochastic-depth", "shared-encoders", "token-dropping"),
    *("importance-gradient", "data-pruning-early", "data-pruning-kmeans:clusters=2", "tensor-galore"),
]


@pytest.mark.long
@pytest.mark.parametrize("name", ALONE)
def test_each_trains_a_tensor_model_to_the_end_of_the_budget(setting, name):
    result = run_methods(setting, parse(f"{TENSOR}+{name}"), splits=("dev",))
    assert result.samples == setting.samples and np.isfinite(result.losses).all()
    assert result.memory["peak"]["value"] > 0


def test_adamw_by_name_is_what_runs_without_a_method(setting):
    named, plain = (run_methods(setting, parse(text), splits=()) for text in ("adamw", "dense"))
    assert named.losses == plain.losses


def test_every_step_of_a_run_is_one_of_the_loop_of_the_model(setting, monkeypatch):
    batches = []

    def noted(segments, step, *others, **options):
        train_segments(segments, lambda batch: (batches.append(len(batch.samples)), step(batch))[1], *others, **options)

    monkeypatch.setattr("bttlab_methods.training.train_segments", noted)
    result = run_methods(setting, parse("lion+stacking"), splits=())
    assert sum(batches) == result.samples == setting.samples and len(batches) == len(result.losses)


def adam_step(state, g, t, beta2=0.999):
    """Adam's direction, in float64 (arXiv 1412.6980, algorithm 1)."""
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g**2
    return state["m"] / (1 - 0.9**t) / (np.sqrt(state["v"] / (1 - beta2**t)) + 1e-8)


def adamw_update(x, g, t, state):
    return x - 3e-4 * (0.01 * x + adam_step(state, g, t))


def momentum_update(x, g, t, state):
    state["sum"] = 0.9 * state.get("sum", 0) + g
    return x - 0.003 * state["sum"]


def lion_update(x, g, t, state):
    m = state.get("m", np.zeros_like(g))
    state["m"] = 0.99 * m + 0.01 * g
    return x - 1e-4 * (np.sign(0.9 * m + 0.1 * g) + 0.01 * x)


def lamb_update(x, g, t, state):
    step = adam_step(state, g, t)
    if x.ndim < 2:
        return x - 3e-4 * step
    step += 0.01 * x
    return x - 0.01 * min(np.linalg.norm(x), 10) / np.linalg.norm(step) * step


def lars_update(x, g, t, state):
    if x.ndim > 1:
        size = np.linalg.norm(x)
        g = 0.3 * size / (np.linalg.norm(g) + 1e-4 * size) * (g + 1e-4 * x)
    state["sum"] = 0.9 * state.get("sum", 0) + g
    return x - 0.01 * state["sum"]


# The papers' updates, in float64; the parameters are too small for the 8-bit codes and for the subspace
UPDATES = {
    "dense": adamw_update,
    "adamw": adamw_update,
    "momentum": momentum_update,
    "lion": lion_update,
    "lamb": lamb_update,
    "lars": lars_update,
    "8bit-optimizer": adamw_update,
    "galore": adamw_update,
}
GRADIENTS = {
    "constant": lambda g, t: 1e-2 * g,
    "alternating": lambda g, t: 1e-2 * g * (-1) ** t,
    "tiny": lambda g, t: 1e-8 * g,
    "random": lambda g, t: 1e-2 * np.random.default_rng(t).normal(size=g.shape),
}


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("name", UPDATES)
def test_the_first_100_steps_are_those_of_the_papers_formula(setting, name, gradients):
    training = Training(setting, parse(name))
    start = np.random.default_rng(0)
    shapes = (5, 4), (6,)
    training.model = torch.nn.ParameterList(torch.from_numpy(start.normal(size=shape)).float() for shape in shapes)
    signs = [start.normal(size=shape) for shape in shapes]
    training.restart_optimizer()
    expected = [p.detach().double().numpy() for p in training.trained]
    first, moved, states = list(expected), [0.0, 0.0], ({}, {})
    for t in range(1, 101):
        for i, parameter in enumerate(training.trained):
            gradient = GRADIENTS[gradients](signs[i], t)
            parameter.grad = torch.from_numpy(gradient).float()
            expected[i] = UPDATES[name](expected[i], parameter.grad.double().numpy(), t, states[i])
            moved[i] = max(moved[i], np.abs(expected[i] - first[i]).max())
        training.optimizer.step()
        for i, parameter in enumerate(training.trained):
            error = np.abs(parameter.detach().numpy() - expected[i]).max()
            assert error <= 1e-3 * moved[i] + t * 2**-22, f"step {t}, {'weight' if i == 0 else 'bias'}"


def test_options_that_pytorch_optimizers_classes_get_are_among_their_parameters(setting, monkeypatch):
    """They take any other keyword without a word, and ignore it."""
    import pytorch_optimizer

    made = []
    for name, kind in list(vars(pytorch_optimizer).items()):
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):

            class Seen(kind):
                base = kind

                def __init__(self, params, **options):
                    groups = [group for group in params if isinstance(group, dict)]
                    given = set(options).union(*groups) - {"params"}
                    unknown = given - set(inspect.signature(self.base).parameters)
                    assert not unknown, f"{self.base.__name__} has no option {unknown}"
                    made.append(self.base.__name__)
                    super().__init__(groups or params, **options)

            monkeypatch.setattr(pytorch_optimizer, name, Seen)
    for name in methods():
        if "optimizer" in methods()[name].changes:
            Training(setting, parse(name))
    assert sorted(made) == ["LARS", "Lion"]


def test_lamb_takes_steps_in_proportion_to_each_weights_norm(setting):
    training, batch = begin(setting, "lamb:learning_rate=0.003,weight_decay=0")
    assert training.setting.batch == 4 * setting.batch
    before = values(training)
    learn(training, batch)
    steps = [
        float((new.detach() - old).norm() / old.norm())
        for old, new in zip(before, training.model.parameters(), strict=True)
        if old.ndim > 1
    ]
    assert steps == pytest.approx([0.003] * len(steps), rel=0.01)


@pytest.mark.parametrize("model", ["", TENSOR + "+"])
def test_encoders_without_norms_start_as_the_identity_and_can_leave_it(setting, model):
    assert identity_error(begin(setting, model.rstrip("+") or "dense")[0]) > 0.1
    training, batch = begin(setting, model + "rezero")
    assert identity_error(training) == 0
    assert not [name for name, _ in training.model.encoders.named_parameters() if "norm" in name]
    encoder = training.model.encoders[0]
    assert encoder.output.scale is encoder.second.scale
    learn(training, batch, 3)
    assert identity_error(training) > 0


def test_stacking_grows_by_copies_under_a_new_optimizer_state(setting):
    training = Training(replace(setting, config=replace(DENSE, encoders=4)), parse("stacking:doublings=2,share=0.5"))
    method, depths, first = training.methods[0], [], training.optimizer

    def seen(_):
        depths.append(len(training.model.encoders))

    training.run(seen)
    assert depths[0] == 1 and depths[-1] == 4 and sorted(depths) == depths and 2 in depths
    assert method.finish(training) == {"encoders": 4} and training.optimizer is not first
    assert {p for group in training.optimizer.param_groups for p in group["params"]} == set(training.trained)

    training, batch = begin(setting, "stacking")
    training.count = setting.samples // 2
    training.step(batch)
    below, above = (list(encoder.parameters()) for encoder in training.model.encoders)
    assert all(torch.equal(*pair) and pair[0] is not pair[1] for pair in zip(below, above, strict=True))
    assert not training.optimizer.state
    with pytest.raises(MethodError, match=r"stacking: doublings is 1 for 1 encoder\(s\): .*divide the encoders; take "):
        Training(replace(setting, config=replace(DENSE, encoders=1)), parse("stacking"))
