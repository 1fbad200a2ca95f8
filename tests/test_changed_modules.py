"""A module that has changed since its trace is refused where it is used; parameters may change."""

import numpy as np
import pytest
import torch
from torch import nn

from bttlab.card import open_trainer
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.program import compile
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, ReferenceTrainer, network_of

from training_processor import some_samples

WORDS, WIDTH, LABELS, LENGTH = 40, 32, 7, 8


GATE, FACTORS, CACHE = torch.linspace(0.5, 1.5, WIDTH), [2.0], {}


class Scale:
    def __init__(self):
        self.factor, self.note = 0.5, "x"


class Net(nn.Module):
    def __init__(self, gate=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.f, self.norm = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.act, self.drop, self.head = nn.Tanh(), nn.Dropout(0.5), nn.Linear(WIDTH, LABELS)
        self.register_buffer("gate", torch.linspace(0.5, 1.5, WIDTH) * gate)
        self.plain, self.several = torch.linspace(0.5, 1.5, WIDTH), [torch.ones(WIDTH), 2.0]
        self.times, self.object, self.step, self.masks = 0.5, Scale(), 0, {}
        self.eval()

    def factor(self):
        return self.object.factor

    def forward(self, tokens):
        x = self.f(self.table(tokens) * self.gate) * self.plain * self.several[0] * self.several[1]
        self.seen = x
        n = tokens.shape[1]
        if n not in self.masks:
            self.masks[n] = torch.full((1,), 0.5)
        if n not in CACHE:
            CACHE[n] = 2.0
        x = x * GATE * FACTORS[0] * CACHE[n]
        x = self.act(self.norm(x)) * self.times * self.factor() * self.masks[n]
        return self.head(self.drop(x).mean(1))


def change_gate(net):
    net.load_state_dict({**net.state_dict(), "gate": 2 * net.gate})


def replace_plain(net):
    net.plain = torch.ones(WIDTH)


def change_in_place(net):
    net.several[0].mul_(2)


def change_number(net):
    net.times = 2.0


def change_in_list(net):
    net.several[1] = 3.0


def change_object(net):
    net.object.factor = 1.0


def change_constant_of_layer(net):
    net.norm.eps = 0.1


def freeze(net):
    net.f.requires_grad_(False)


def replace_layer(net):
    net.act = nn.ReLU()


def add_hook(net):
    net.f.register_forward_hook(lambda layer, args, y: 2 * y)


def replace_forward(net):
    old = net.f.forward
    net.f.forward = lambda x: 2 * old(x)


def replace_global(net):
    globals()["GATE"] = 2 * GATE


def change_global(net):
    GATE.mul_(2)


def change_global_list(net):
    FACTORS[0] += 1


CHANGES = {
    replace_global: "GATE",
    change_global: "GATE",
    change_global_list: r"FACTORS\[0\]",
    change_gate: "gate",
    replace_plain: "plain",
    change_in_place: r"several\[0\]",
    change_number: "times",
    change_in_list: r"several\[1\]",
    change_object: "object.factor",
    change_constant_of_layer: "norm.eps",
    freeze: "requires_grad of f.weight",
    replace_layer: "act",
    add_hook: "a hook of f",
    replace_forward: "forward of f",
}


@pytest.mark.parametrize("use", [lambda model: model.parameters(), compile, network_of, ReferenceTrainer, open_trainer])
@pytest.mark.parametrize("change", CHANGES)
def test_a_module_that_has_changed_is_refused(change, use):
    net = Net()
    model = trace(net, LENGTH)
    use(model)
    change(net)
    with pytest.raises(
        ProgramError, match=f"^Net: {CHANGES[change]} has changed since the trace: trace the module again"
    ):
        use(model)
    trace(net, LENGTH).parameters()


def test_parameters_and_what_forward_does_not_read_may_change():
    net = Net()
    net(torch.ones((1, 3), dtype=torch.long))
    model = trace(net, LENGTH)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1)
    net.step += 1  # a count of the user's own
    net.object.note, net.name = "y", "mine"
    for length in range(1, 12):  # forward keeps tensors and fills a cache
        net(torch.ones((1, length), dtype=torch.long))
    net.masks.clear()
    net.train()
    compile(model)
    assert np.array_equal(model.parameters()["f.weight"], net.f.weight.detach().numpy())


def test_the_copy_is_in_the_mode_of_the_trace():
    net = Net()
    model = trace(net, LENGTH)
    samples = some_samples(model, [8, 3, 5, 2])
    wanted = ReferenceTrainer(model).train(samples, Optimizer("sgd"), 0.1)
    net.train()
    assert np.array_equal(ReferenceTrainer(model).train(samples, Optimizer("sgd"), 0.1), wanted)
    assert net.training and net.drop.training


def test_another_precision_of_buffers_is_no_change():
    net = Net()
    model = trace(net, LENGTH)
    net.double()
    model.parameters()
