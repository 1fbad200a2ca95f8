"""The reference trainer: steps, optimizers, state, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.data import Samples
from bttlab.model import Optimizer, ReferenceTrainer, Transformer, loss
from bttlab.util.errors import BttlabError
from test_model import SMALL

from training_processor import some_samples

OPTIMIZERS = [Optimizer("sgd"), Optimizer("momentum", momentum=0.8), Optimizer("adamw", weight_decay=0.1)]


def make_samples(n: int) -> Samples:
    return some_samples(SMALL, np.random.default_rng(0).integers(2, SMALL.sequence_length + 1, n))


def loss_of(model: Transformer, samples: Samples, i: int) -> torch.Tensor:
    length = samples.lengths[i]
    tokens, slots = (torch.from_numpy(array[i].astype(np.int64)) for array in (samples.tokens, samples.slots))
    return loss(*model(tokens[:length]), torch.tensor(int(samples.intents[i])), slots[1:length])


def torch_training(samples, optimizer: Optimizer, rates) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Updates by the mean of a batch's gradients in torch.optim; AdamW's as AdamA defines them, in double precision."""
    size, losses = optimizer.batch_size, []
    model = Transformer(SMALL).double()
    update = torch.optim.SGD(model.parameters(), momentum=optimizer.momentum if optimizer.name == "momentum" else 0)
    means, squares = ([torch.zeros_like(p) for p in model.parameters()] for _ in range(2))
    for number in range(len(rates) // size):
        batch = range(number * size, (number + 1) * size)
        parameters = list(model.parameters())
        values = [loss_of(model, samples, i) for i in batch]
        losses += [value.item() for value in values]
        gradients = [torch.autograd.grad(value / size, parameters) for value in values]
        rate = update.param_groups[0]["lr"] = rates[batch[-1]]
        for n, (p, *shares) in enumerate(zip(parameters, *gradients, strict=True)):
            p.grad = sum(shares)
            if optimizer.name == "adamw":
                means[n] = optimizer.beta1 * means[n] + (1 - optimizer.beta1) * p.grad
                squares[n] = optimizer.beta2 * squares[n] + (1 - optimizer.beta2) * sum(g * g for g in shares)
                mean = means[n] / (1 - optimizer.beta1 ** (number + 1))
                square = squares[n] / (1 - optimizer.beta2 ** (number + 1))
                p.data *= 1 - rate * optimizer.weight_decay
                p.data -= rate * mean / (square.sqrt() + optimizer.epsilon)
        if optimizer.name != "adamw":
            update.step()
    return losses, model.state_dict()


def same(a: dict, b: dict) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_updates_are_those_of_torch_optim(optimizer, batch_size):
    optimizer = replace(optimizer, batch_size=batch_size, epsilon=1e-3)  # rounding alone becomes no step of AdamW
    samples, rates = make_samples(11), np.linspace(0.02, 0.01, 11)
    trainer = ReferenceTrainer(SMALL)
    losses = [*trainer.train(samples[:4], optimizer, rates[:4])]  # of 3, amid an update
    moved = ReferenceTrainer(SMALL)
    moved.load_parameters(trainer.store_parameters(), trainer.store_optimizer_state())
    losses += [*moved.train(samples[4:], optimizer, rates[4:])]  # of 3, the last two wait for a third
    expected, parameters = torch_training(samples, optimizer, rates)
    np.testing.assert_allclose(losses[: len(expected)], expected, rtol=1e-5)
    for name, array in moved.store_parameters().items():
        np.testing.assert_allclose(array, parameters[name].numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "rates, message",
    [
        (-0.1, "learning rate is -0.1: it must be finite and at least 0"),
        (np.array([0.1, np.nan]), "learning rate is nan: it must be finite and at least 0"),
        (np.ones(3), r"learning_rate has shape \(3,\).*each of 2 samples"),
    ],
)
def test_learning_rates_that_are_refused(rates, message):
    trainer = ReferenceTrainer(SMALL)
    before = trainer.store_parameters()
    with pytest.raises(BttlabError, match=message):
        trainer.train(make_samples(2), Optimizer(), rates)
    assert same(trainer.store_parameters(), before)


def test_an_optimizer_that_is_not_the_state_s_is_refused():
    trainer = ReferenceTrainer(SMALL)
    trainer.train(make_samples(2), OPTIMIZERS[1], 0.01)
    with pytest.raises(
        BttlabError, match=r"has first_moment but adamw needs first_moment, second_moment: .* without a state"
    ):
        trainer.train(make_samples(2), OPTIMIZERS[2], 0.01)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda p, s: p.pop("slot_head.bias"), "parameters of another model: slot_head.bias is missing"),
        (lambda p, s: p.update(extra=p["slot_head.bias"]), r"extra is \(7,\), but not there in this model"),
        (lambda p, s: p.update({"slot_head.bias": np.zeros(8)}), r"slot_head.bias is \(8,\), but \(7,\)"),
        (lambda p, s: s.pop("step"), "the optimizer state has no 'step'"),
        (lambda p, s: s.pop("first_moment.slot_head.bias"), "first_moment of another model: slot_head.bias is missing"),
        (lambda p, s: s.update(third_moment=np.zeros(1)), "the optimizer state has 'third_moment'"),
    ],
)
def test_parameters_and_states_that_are_refused(change, message):
    trainer = ReferenceTrainer(SMALL)
    trainer.train(make_samples(2), OPTIMIZERS[1], 0.01)
    parameters, state = trainer.store_parameters(), trainer.store_optimizer_state()
    before = dict(parameters)
    change(parameters, state)
    with pytest.raises(BttlabError, match=message):
        trainer.load_parameters(parameters, state)
    assert same(trainer.store_parameters(), before)
