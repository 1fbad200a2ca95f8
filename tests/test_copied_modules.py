"""A copy of a user's module is the module: closures, hooks and what `forward` keeps, also with other parameters."""

import functools
import types
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from bttlab.baseline.step import Task
from bttlab.card import open_trainer
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, ReferenceTrainer, network_of
from bttlab.runs.evaluation import trained_network
from bttlab.util.errors import BttlabError

from training_processor import some_samples

WORDS, WIDTH, LABELS, LENGTH = 40, 32, 7, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.f, self.g = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, LABELS)
        self.make()

    def make(self):
        pass

    def body(self, x):
        return torch.tanh(self.g(self.f(x)))

    def forward(self, tokens):
        return self.head(self.body(self.table(tokens)).mean(1))


class Closure(Net):
    def make(self):
        self.body = lambda x: torch.tanh(self.g(self.f(x)))


class ClosureOfClosure(Net):
    def make(self):
        inner = {"f": [lambda x: self.f(x)]}
        self.body = lambda x: torch.tanh(self.g(inner["f"][0](x)))


class Default(Net):
    def make(self):
        self.body = lambda x, me=self: torch.tanh(me.g(me.f(x)))


class KeywordDefault(Net):
    def make(self):
        def body(x, *, layers=(self.f, self.g)):
            return torch.tanh(layers[1](layers[0](x)))

        self.body = body


class Partial(Net):
    def make(self):
        self.body = functools.partial(lambda g, x: torch.tanh(g(self.f(x))), self.g)


class OfParameters(Net):
    def make(self):
        w, b = self.f.weight, self.f.bias
        self.weights = [self.g.weight, self.g.bias]
        self.body = lambda x: torch.tanh(F.linear(F.linear(x, w, b), *self.weights))


class Method(Net):
    def make(self):
        outer = self
        self.f.forward = types.MethodType(lambda me, x: outer.g(F.linear(x, me.weight, me.bias)), self.f)

    def body(self, x):
        return torch.tanh(self.f(x))


class Lora(Net):
    def make(self):
        self.a, self.b = nn.Linear(WIDTH, 16, bias=False), nn.Linear(16, WIDTH, bias=False)
        nn.init.zeros_(self.b.weight)
        old = self.f.forward
        self.f.forward = lambda x: old(x) + self.b(self.a(x))


class Hook(Net):
    def make(self):
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.f.register_forward_hook(lambda layer, args, y: y * self.gain)


class Checkpointed(Net):
    """Computes the closure again in the backward pass."""

    def make(self):
        self.inner = lambda x: torch.tanh(self.g(self.f(x)))
        self.body = lambda x: checkpoint(self.inner, x, use_reentrant=False)


class Buffer(Net):
    def make(self):
        self.register_buffer("gate", torch.linspace(0.5, 1.5, WIDTH))
        self.body = lambda x: torch.tanh(self.g(self.f(x) * self.gate))


class Keeps(Net):
    """Keeps what autograd has computed, to plot it."""

    def body(self, x):
        q, k = self.f(x), self.g(x)
        self.attention = torch.softmax(q @ k.transpose(1, 2) / WIDTH**0.5, -1)
        self.seen = [self.attention.mean(), {"scores": q}]
        return self.attention @ x


COPIED = [
    Closure,
    ClosureOfClosure,
    Default,
    KeywordDefault,
    Partial,
    OfParameters,
    Method,
    Lora,
    Hook,
    Checkpointed,
    Buffer,
    Keeps,
]


def in_pytorch(net, parameters, samples, rate):
    """Return the losses of SGD with one sample at a time, and the parameters after it."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(parameters[name]))
    optimizer, losses = torch.optim.SGD(net.parameters(), rate), []
    for i, length in enumerate(samples.lengths):
        logits = net(torch.from_numpy(samples.tokens[i : i + 1, :length]).long())
        loss = F.cross_entropy(logits, torch.from_numpy(samples.intents[i : i + 1]).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses), {name: p.detach().numpy() for name, p in net.named_parameters()}


def others(model):
    """Return other parameters than those of the module."""
    random = np.random.default_rng(0)
    return {
        name: (x + 0.1 * random.standard_normal(x.shape)).astype(np.float32) for name, x in model.parameters().items()
    }


@pytest.mark.parametrize("kind", COPIED)
def test_the_reference_trains_the_copy_with_the_parameters_that_are_loaded(kind):
    net = kind()
    net(torch.ones((1, 5), dtype=torch.long))  # keeps attention weights
    model = trace(net, LENGTH)
    samples, start = some_samples(model, [8, 3, 5, 2]), others(model)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    trainer = ReferenceTrainer(model)
    trainer.load_parameters(start)
    losses = trainer.train(samples, Optimizer("sgd"), 0.1)

    wanted, trained = in_pytorch(kind(), start, samples, 0.1)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    for name, parameter in trainer.store_parameters().items():
        np.testing.assert_allclose(parameter, trained[name], atol=1e-5, err_msg=name)
    for name, parameter in net.named_parameters():  # the user's module stays as it is
        assert torch.equal(parameter, before[name]) and parameter.grad is None


@pytest.mark.parametrize("kind", [Closure, Lora, Hook, Keeps])
def test_predictions_baseline_and_decoded_tags_use_the_copy(kind):
    model = trace(kind(), LENGTH)
    samples, start = some_samples(model, [8, 3, 5, 2]), others(model)
    card = open_trainer(model)
    card.load_parameters(start)
    wanted = card.predict(samples)
    trainer = ReferenceTrainer(model)
    trainer.load_parameters(start)
    np.testing.assert_allclose(trainer.predict(samples).losses, wanted.losses, rtol=1e-3)

    network = trained_network(card)
    for i, length in enumerate(samples.lengths):
        logits = network(torch.from_numpy(samples.tokens[i, :length]).long())[0]
        label = torch.tensor(int(samples.intents[i]))
        assert F.cross_entropy(logits, label).item() == pytest.approx(wanted.losses[i], rel=1e-3)

    task = Task(model, "bidirectional", samples, 0.1, 0, "cpu")
    for n in range(len(samples)):
        task.step(n, task.loss)
    losses, _ = in_pytorch(kind(), model.parameters(), samples, 0.1)
    np.testing.assert_allclose(task.losses.numpy(), losses, rtol=1e-4)


def test_closures_without_the_module_are_not_copied():
    import threading

    class WithLock(Net):
        def make(self):
            lock, words = threading.Lock(), {"a": 1}  # a lock has no copy

            def body(x):
                with lock:
                    return torch.tanh(self.g(self.f(x))) * words["a"]

            self.body = body

    network_of(trace(WithLock(), LENGTH))


LAYERS = {}


class OfGlobal(Net):
    def make(self):
        LAYERS["f"] = self.f

    def body(self, x):
        return torch.tanh(self.g(LAYERS["f"](x)))


class OfWeakReference(Net):
    def make(self):
        me = weakref.ref(self)
        self.body = lambda x: torch.tanh(me().g(me().f(x)))


class OfClass(Net):
    def make(self):
        layer = self.f

        class Inner(nn.Module):
            def forward(self, x):
                return layer(x)

        self.inner = Inner()

    def body(self, x):
        return torch.tanh(self.g(self.inner(x)))


@pytest.mark.parametrize("kind", [OfGlobal, OfWeakReference, OfClass])
def test_a_copy_that_reads_the_module_is_refused_in_one_line(kind):
    model = trace(kind(), LENGTH)
    before = model.parameters()
    with pytest.raises(BttlabError, match=rf"{kind.__name__} cannot be copied.* differs.*let it read self") as error:
        ReferenceTrainer(model)
    assert "\n" not in str(error.value)
    assert all(np.array_equal(x, before[name]) for name, x in model.parameters().items())


def test_an_attribute_without_a_copy_is_refused_in_one_line():
    class Locked(Net):
        def make(self):
            self.generator = (x for x in range(3))

    with pytest.raises(
        BttlabError, match=r"Locked cannot be copied for PyTorch \(TypeError: cannot pickle 'generator'"
    ):
        ReferenceTrainer(trace(Locked(), LENGTH))


def test_the_copy_leaves_what_the_module_keeps():
    net = Keeps()
    model = trace(net, LENGTH)
    net(torch.ones((1, 5), dtype=torch.long))
    kept = net.attention
    network_of(model)
    assert net.attention is kept and kept.shape == (1, 5, 5)


def test_a_baseline_trains_what_is_not_frozen():
    class Frozen(Net):
        def make(self):
            self.f.requires_grad_(False)

    model = trace(Frozen(), LENGTH)
    samples = some_samples(model, [8, 3, 5, 2])
    task = Task(model, "bidirectional", samples, 0.1, 0, "cpu")
    for n in range(len(samples)):
        task.step(n, task.loss)
    losses, trained = in_pytorch(Frozen(), model.parameters(), samples, 0.1)
    np.testing.assert_allclose(task.losses.numpy(), losses, rtol=1e-4)
    for name, parameter in task.model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), trained[name], atol=1e-5, err_msg=name)
