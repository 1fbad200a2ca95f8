"""The reference trainer and batches: steps, optimizers, state, and what is refused."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import torch

from bttlab.data import Samples, Vocabulary, encode, load_corpus
from bttlab.model import Optimizer, ReferenceTrainer, Transformer, batch_losses, equal_length_batches, loss
from bttlab.util.errors import BttlabError
from rounding import rounding
from test_model import SMALL
from tiny_runs import CONFIG

from training_processor import some_samples

OPTIMIZERS = [Optimizer("sgd"), Optimizer("momentum", momentum=0.8), Optimizer("adamw", weight_decay=0.1)]


def make_samples(n: int) -> Samples:
    return some_samples(SMALL, np.random.default_rng(0).integers(2, SMALL.sequence_length + 1, n))


def loss_of(model: Transformer, samples: Samples, i: int, smoothing: float = 0.0) -> torch.Tensor:
    length = samples.lengths[i]
    tokens, slots = (torch.from_numpy(array[i].astype(np.int64)) for array in (samples.tokens, samples.slots))
    return loss(*model(tokens[:length]), torch.tensor(int(samples.intents[i])), slots[1:length], smoothing)


def torch_training(samples, optimizer: Optimizer, rates) -> tuple[list[float], dict[str, torch.Tensor], float]:
    """Updates by the mean of a batch's gradients in torch.optim; AdamW's as AdamA defines them, in double precision.

    Returns losses, parameters and how much a loss changes, at most, if each parameter changes by 1.
    """
    size, losses, slope = optimizer.batch_size, [], 0.0
    model = Transformer(SMALL).double()
    update = torch.optim.SGD(model.parameters(), momentum=optimizer.momentum if optimizer.name == "momentum" else 0)
    means, squares = ([torch.zeros_like(p) for p in model.parameters()] for _ in range(2))
    for number in range(len(rates) // size):
        batch = range(number * size, (number + 1) * size)
        parameters = list(model.parameters())
        values = [loss_of(model, samples, i) for i in batch]
        losses += [value.item() for value in values]
        gradients = [torch.autograd.grad(value / size, parameters) for value in values]
        slope = max(slope, *(size * sum(float(g.abs().sum()) for g in shares) for shares in gradients))
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
    return losses, model.state_dict(), slope


def same(a: dict, b: dict) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_updates_are_those_of_torch_optim(optimizer, batch_size):
    optimizer = replace(optimizer, batch_size=batch_size, epsilon=1e-2)  # rounding alone becomes no step of AdamW
    samples, rates = make_samples(11), np.linspace(0.02, 0.01, 11)
    trainer = ReferenceTrainer(SMALL)
    losses = [*trainer.train(samples[:4], optimizer, rates[:4])]  # of 3, amid an update
    moved = ReferenceTrainer(SMALL)
    moved.load_parameters(trainer.store_parameters(), trainer.store_optimizer_state())
    losses += [*moved.train(samples[4:], optimizer, rates[4:])]  # of 3, the last two wait for a third
    expected, parameters, slope = torch_training(samples, optimizer, rates)
    # An error of a gradient is multiplied by the rule: momentum adds it up, AdamW divides it by epsilon at least.
    factor = {"sgd": 1, "momentum": 1 / (1 - optimizer.momentum), "adamw": 1 / optimizer.epsilon}[optimizer.name]
    tolerance = rates.sum() * factor * rounding(SMALL)
    first = dict(Transformer(SMALL).named_parameters())
    assert max(np.abs(first[name].detach().numpy() - p.numpy()).max() for name, p in parameters.items()) > 9 * tolerance
    np.testing.assert_allclose(losses[: len(expected)], expected, rtol=rounding(SMALL), atol=slope * tolerance)
    for name, array in moved.store_parameters().items():
        np.testing.assert_allclose(array, parameters[name].numpy(), rtol=0, atol=tolerance)


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
        (lambda p, s: s.update(step=np.asarray(2.7)), r"has step array\(2.7\): .* a whole number of at least 0"),
        (lambda p, s: s.update(step=-3), "has step -3: .* a whole number of at least 0"),
        (lambda p, s: s.update(step=np.nan), "has step nan"),
        (lambda p, s: s.update(step=np.array([2])), r"has step array\(\[2\]\)"),
        (lambda p, s: s.update(step=0), "has step 0 and first_moment.* that is not 0, as before the first sample"),
        (
            lambda p, s: p.update({"slot_head.bias": p["slot_head.bias"] + 1j}),
            "parameters: slot_head.bias has complex numbers, and parameters and moments are real",
        ),
        (
            lambda p, s: s.update({"first_moment.slot_head.bias": s["first_moment.slot_head.bias"] * 1j}),
            "first_moment: slot_head.bias has complex numbers",
        ),
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


@pytest.fixture(scope="module")
def samples(corpus):
    corpus = load_corpus(corpus)
    vocabulary = Vocabulary.from_sentences(corpus.train.words, CONFIG.vocabulary_size)
    return encode(corpus.train, vocabulary, corpus, CONFIG)


def _cut(order, lengths, seed):
    return equal_length_batches(order, lengths, 4, np.random.default_rng(seed))


def test_a_second_thread_is_refused_while_one_trains():
    """As a cell that trains, and a widget's button that JupyterLab handles in another thread."""
    samples, optimizer, is_inside, may_end = some_samples(CONFIG, [3, 5, 4]), Optimizer("sgd"), Event(), Event()
    trainer, alone = ReferenceTrainer(CONFIG), ReferenceTrainer(CONFIG)
    trainer.model.register_forward_pre_hook(lambda *_: (is_inside.set(), may_end.wait(60)) and None)
    parameters = trainer.store_parameters()
    with ThreadPoolExecutor(1) as other:
        losses = other.submit(trainer.train, samples, optimizer, 1e-2)
        assert is_inside.wait(60)
        for refused in (lambda: trainer.train(samples, optimizer, 1e-2), lambda: trainer.load_parameters(parameters)):
            with pytest.raises(BttlabError, match="is training already"):
                refused()
        may_end.set()
        np.testing.assert_array_equal(losses.result(), alone.train(samples, optimizer, 1e-2))
    for name, array in alone.store_parameters().items():
        np.testing.assert_array_equal(trainer.store_parameters()[name], array, name)
    trainer.train(samples, optimizer, 1e-2)  # after it ended


def test_batches_hold_each_utterance_once_and_one_length_each():
    random = np.random.default_rng(0)
    lengths, order = random.integers(3, 7, 60), random.permutation(60)[:50]
    found = _cut(order, lengths, 1)
    assert sorted(np.concatenate(found)) == sorted(order)
    assert all(len(batch) <= 4 and len(set(lengths[batch])) == 1 for batch in found)
    assert len(found) == sum(-(-np.sum(lengths[order] == length) // 4) for length in np.unique(lengths[order]))
    assert [list(batch) for batch in found] != [list(batch) for batch in _cut(order, lengths, 2)]


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, format="dense")], ids=["tensor", "dense"])
def test_losses_and_gradients_are_those_of_the_utterances(samples, config):
    batch = equal_length_batches(np.arange(len(samples)), samples.lengths, 3, np.random.default_rng(0))[0]
    part = samples[batch]
    model = Transformer(config, seed=1)
    losses = batch_losses(model, part, 0.1)
    losses.mean().backward()
    got = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for i in range(len(part)):
        value = loss_of(model, part, i, 0.1)
        assert losses[i].item() == pytest.approx(value.item(), rel=1e-5)
        (value / len(part)).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(got[name], parameter.grad, rtol=1e-4, atol=1e-7), name
