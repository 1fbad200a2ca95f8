"""Numbers that are not finite, on the overlay and in PyTorch: the same fault at the same sample; nothing is lost."""

import numpy as np
import pytest

from bttlab.card import EmulatedU50, open_trainer
from bttlab.data import Samples
from bttlab.model import ModelConfig, NumericalFault, Optimizer, ReferenceTrainer, StateError, initial_parameters

from training_processor import some_samples

CONFIG = ModelConfig()
OPTIMIZERS = [Optimizer(name) for name in ("sgd", "momentum", "adamw")]
FAULTY = 5  # the sample that is


@pytest.fixture(scope="module")
def overlay():
    return open_trainer(CONFIG, EmulatedU50())


@pytest.fixture(params=["emulated", "reference"])
def trainer(request, overlay):
    trainer = overlay if request.param == "emulated" else ReferenceTrainer(CONFIG)
    trainer.load_parameters(initial_parameters(CONFIG, 0))
    return trainer


@pytest.fixture
def samples() -> Samples:
    return some_samples(CONFIG, np.random.default_rng(0).integers(3, 12, 10))


def state(trainer) -> list[np.ndarray]:
    return [*trainer.store_parameters().values(), *trainer.store_optimizer_state().values()]


def same(first, second) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_an_update_that_would_not_be_finite(trainer, samples, optimizer):
    rates = np.full(10, 1e-3)
    rates[FAULTY] = 1e30
    with pytest.raises(NumericalFault, match=f"the update by sample {FAULTY} would not be finite") as caught:
        trainer.train(samples, optimizer, rates)
    fault, stopped = caught.value, state(trainer)
    assert (fault.fault, fault.sample, len(fault.losses)) == ("update", FAULTY, FAULTY)
    later = trainer.train(samples[FAULTY:], optimizer, 1e-3)
    trainer.load_parameters(initial_parameters(CONFIG, 0))
    losses = trainer.train(samples[:FAULTY], optimizer, 1e-3)
    assert np.array_equal(losses, fault.losses) and same(stopped, state(trainer))
    assert np.array_equal(trainer.train(samples[FAULTY:], optimizer, 1e-3), later)  # as if nothing had been


def test_a_gradient_that_is_too_large(trainer, samples):
    parameters = initial_parameters(CONFIG, 0)
    norm = "encoders.1.feed_forward_norm.weight"
    parameters[norm] *= 1e18
    for name, factor in (("cores.0", 1e-28), ("cores.1", 1e10)):
        for pooler in ("intent_pooler", "slot_pooler"):
            parameters[f"{pooler}.{name}"] = parameters[f"{pooler}.{name}"] * np.float32(factor)
    trainer.load_parameters(parameters)
    before = state(trainer)
    with pytest.raises(NumericalFault, match="a gradient of sample 0 is not finite or too large"):
        trainer.train(samples, Optimizer("sgd"), 1e-3)
    assert same(before, state(trainer))


def test_a_parameter_that_is_too_large(trainer, samples):
    parameters = initial_parameters(CONFIG, 0)
    parameters["slot_head.bias"][:] = 1e19  # all alike: the loss is as it was
    trainer.load_parameters(parameters)
    with pytest.raises(NumericalFault, match="a parameter or moment before sample 0"):
        trainer.train(samples, Optimizer("sgd"), 1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_not_loaded(trainer, value):
    before = state(trainer)
    parameters = initial_parameters(CONFIG, 1)
    parameters["slot_head.weight"][3, 4] = value
    with pytest.raises(StateError, match=rf"parameters: slot_head.weight is {value} at \(3, 4\).*go back"):
        trainer.load_parameters(parameters)
    assert same(before, state(trainer))
