"""An optimizer state belongs to a batch size: another one is refused, and its own continues as in torch.optim."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bttlab.card import open_trainer
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, ReferenceTrainer, StateError

from training_processor import some_samples

WORDS, WIDTH, LABELS, LENGTH = 40, 32, 7, 8
RULES = ["sgd", "momentum", "adamw"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.f, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, LABELS)

    def forward(self, tokens):
        return self.head(torch.tanh(self.f(self.table(tokens))).mean(1))


@pytest.fixture(scope="module")
def model():
    return trace(Net(), LENGTH)


@pytest.fixture(params=[ReferenceTrainer, open_trainer], ids=["PyTorch", "card"])
def trainer(request, model):
    trainer = request.param(model)
    trainer.load_parameters(model.parameters())
    return trainer


def samples_of(model, count):
    return some_samples(model, [8, 3, 5, 2, 7, 4, 6, 8, 3, 5, 2, 7, 4, 6, 8, 3][:count])


def state_of(trainer):
    return trainer.store_parameters() | trainer.store_optimizer_state()


@pytest.mark.parametrize("count", [8, 10])  # between two updates, and in the middle of one
@pytest.mark.parametrize(("size", "other"), [(4, 2), (4, 8), (1, 8), (8, 1), (2, 1)])
@pytest.mark.parametrize("name", RULES)
def test_another_batch_size_is_refused(trainer, model, name, size, other, count):
    samples = samples_of(model, count)
    trainer.train(samples, Optimizer(name, batch_size=size), 0.01)
    before = state_of(trainer)
    message = (
        rf"of updates of {size} samples?, but the optimizer has batch_size={other}: continue with batch_size={size}"
    )
    with pytest.raises(StateError, match=message) as error:
        trainer.train(samples, Optimizer(name, batch_size=other), 0.01)
    assert "\n" not in str(error.value)

    state = trainer.store_optimizer_state()  # and so in another trainer
    moved = ReferenceTrainer(model)
    moved.load_parameters(trainer.store_parameters(), state)
    with pytest.raises(StateError, match=message):
        moved.train(samples, Optimizer(name, batch_size=other), 0.01)
    trainer.load_parameters(trainer.store_parameters(), state)
    with pytest.raises(StateError, match=message):
        trainer.train(samples, Optimizer(name, batch_size=other), 0.01)
    assert all(np.array_equal(x, before[key]) for key, x in state_of(trainer).items())


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_a_state_continues_as_in_torch_optim_and_parameters_without_it_start_again(trainer, model, name):
    samples, rate, net = samples_of(model, 16), 0.05, Net()

    def step_in_pytorch(part, size, optimizer):
        for begin in range(0, len(part), size):
            optimizer.zero_grad()
            for i in range(begin, begin + size):
                tokens = torch.from_numpy(part.tokens[i : i + 1, : part.lengths[i]]).long()
                label = torch.from_numpy(part.intents[i : i + 1]).long()
                (F.cross_entropy(net(tokens), label) / size).backward()
            optimizer.step()

    def optimizer():
        return torch.optim.SGD(net.parameters(), rate, momentum=0.9 if name == "momentum" else 0.0)

    def check():
        for key, parameter in trainer.store_parameters().items():
            np.testing.assert_allclose(parameter, net.get_parameter(key).detach().numpy(), atol=2e-5, err_msg=key)

    rule = Optimizer(name, batch_size=4)
    for part in (slice(0, 3), slice(3, 10), slice(10, 16)):
        trainer.train(samples[part], rule, rate)
        trainer.load_parameters(trainer.store_parameters(), trainer.store_optimizer_state())
    step_in_pytorch(samples, 4, optimizer())
    check()

    trainer.load_parameters(trainer.store_parameters())
    trainer.train(samples, Optimizer(name, batch_size=8), rate)
    step_in_pytorch(samples, 8, optimizer())
    check()


def test_a_state_without_a_batch_size_continues(trainer, model):
    rule, samples = Optimizer("adamw", batch_size=4), samples_of(model, 8)
    trainer.train(samples, rule, 0.01)
    state = trainer.store_optimizer_state()
    assert state["batch_size"] == 4
    del state["batch_size"]  # of version 0.1
    trainer.load_parameters(trainer.store_parameters(), state)
    trainer.train(samples, rule, 0.01)
    assert trainer.store_optimizer_state()["batch_size"] == 4


def test_a_trainer_without_steps_takes_any_batch_size(trainer, model):
    rule = Optimizer("momentum", batch_size=4)
    trainer.train(samples_of(model, 4)[:0], rule, 0.01)
    assert "batch_size" not in trainer.store_optimizer_state()
    trainer.load_parameters(trainer.store_parameters(), trainer.store_optimizer_state())
    trainer.train(samples_of(model, 4), Optimizer("momentum", batch_size=2), 0.01)
