"""A program that ignores the slot label 0 (PAD): neither loss nor gradient, as PyTorch's ignore_index."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bttlab.card.processor import sample_records
from bttlab.compiler.hazards import check_program
from bttlab.compiler.program import Options, compile
from bttlab.model import Optimizer, ReferenceTrainer, Transformer, batch_losses
from bttlab.util.errors import BttlabError

from training_processor import SMALL, equal_bits, first_moments, some_parameters, some_samples

IGNORING = replace(SMALL, ignore_pad=True)


def samples_with_pad(lengths=(9,), seed=5):
    """Samples in which the second, third and last word have the label 0, and others do not."""
    samples = some_samples(IGNORING, lengths, seed)
    for slots, length in zip(samples.slots, samples.lengths, strict=True):
        slots[1:length] = np.maximum(slots[1:length], 1)
        slots[[2, 3, length - 1]] = 0
    return samples


def gradients(parameters, sample, smoothing=0.0):
    """Loss without label smoothing, and gradients with it, in float64 by PyTorch."""
    network = Transformer(SMALL).double()
    network.load({name: value.astype(np.float64) for name, value in parameters.items()})
    length = int(sample.lengths[0])
    intents, slots = network(torch.from_numpy(sample.tokens[:, :length]).long())
    of_slots = slots[0], torch.from_numpy(sample.slots[0, 1:length]).long()
    intent = torch.from_numpy(sample.intents).long()
    value = F.cross_entropy(intents, intent) + F.cross_entropy(*of_slots, ignore_index=0)
    smooth = F.cross_entropy(intents, intent, label_smoothing=smoothing)
    (smooth + F.cross_entropy(*of_slots, ignore_index=0, label_smoothing=smoothing)).backward()
    return value.item(), {name: p.grad.numpy() for name, p in network.named_parameters()}


@pytest.mark.parametrize("flow", ["bidirectional", "mixed"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_are_pytorchs(fast, flow, smoothing):
    program, parameters, sample = compile(IGNORING, Options(flow)), some_parameters(SMALL), samples_with_pad()
    fast.load_program(program)
    fast.load(parameters)
    optimizer = Optimizer("momentum")
    result = fast.train(sample_records(program, sample, [0.0], optimizer, smoothing), optimizer)[0]
    _, moments, _ = fast.store()
    loss, wanted = gradients(parameters, sample, smoothing)
    of_labelled = (
        result["intent_loss"] + result["slot_loss"] * 8 / 5
    )  # the card's is the mean of 8 words, 3 of them PAD
    assert of_labelled == pytest.approx(loss, abs=1e-5)
    largest = max(np.abs(gradient).max() for gradient in wanted.values())
    for name, gradient in wanted.items():
        assert np.abs(moments[name] - gradient).max() < 1e-4 * largest, name


def test_what_words_are_labelled_pad_with_does_not_matter_and_others_do(fast):
    """Another program would learn from PAD; without PAD both programs have the same gradients."""
    parameters, sample = some_parameters(SMALL), samples_with_pad()
    programs = [compile(config, Options("bidirectional")) for config in (SMALL, IGNORING)]
    taught, ignored = (first_moments(fast, program, parameters, sample)[1] for program in programs)
    assert not np.allclose(taught["slot_head.bias"], ignored["slot_head.bias"], atol=1e-2)
    without = replace_slots(sample, np.where(np.arange(sample.slots.shape[1]) < 9, np.maximum(sample.slots, 1), 0))
    taught, ignored = (first_moments(fast, program, parameters, without)[1] for program in programs)
    largest = max(np.abs(value).max() for value in taught.values())
    for name, value in taught.items():
        assert np.abs(ignored[name] - value).max() < 1e-5 * largest, name


def replace_slots(samples, slots):
    return type(samples)(samples.tokens, samples.lengths, samples.intents, slots.astype(np.int32))


def test_the_program_has_no_hazards():
    assert check_program(compile(IGNORING), (2, 17)) == []


@pytest.mark.long
def test_the_loop_gives_the_bits_of_the_fast_emulation(loop, fast):
    program, parameters, samples = compile(IGNORING), some_parameters(SMALL), samples_with_pad((9, 17, 5))
    states = []
    for processor in (loop, fast):
        processor.load_program(program)
        processor.load(parameters)
        optimizer = Optimizer("adamw")
        results = processor.train(sample_records(program, samples, [0.01] * 3, optimizer, 0.1), optimizer)
        states.append([*processor.store()[:2], {"slots": results["slots"], "loss": results["loss"]}])
    assert all(equal_bits(one, other) for one, other in zip(*states, strict=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_batches_have_the_losses_of_single_samples(smoothing):
    samples, parameters = samples_with_pad((9, 9, 9)), some_parameters(SMALL)
    trainer = ReferenceTrainer(IGNORING)
    trainer.load_parameters(parameters)
    single = trainer.predict(samples).losses
    assert batch_losses(trainer.model, samples).detach().numpy() == pytest.approx(single, rel=1e-5)
    assert single[0] == pytest.approx(gradients(parameters, samples[:1])[0], rel=1e-5)
    _, wanted = gradients(parameters, samples[:1], smoothing)
    trainer.train(samples[:1], Optimizer("sgd"), 1.0, smoothing)
    step = parameters["slot_head.bias"] - trainer.store_parameters()["slot_head.bias"]
    assert step == pytest.approx(wanted["slot_head.bias"], abs=1e-5)


def test_a_sample_without_labels_of_words_is_refused():
    samples = samples_with_pad()
    samples.slots[:] = 0
    with pytest.raises(BttlabError, match=r"sample 0.*: slot label 0: a word must have another label"):
        samples.validate(IGNORING)
    samples.validate(SMALL)


def test_only_a_configuration_that_ignores_pad_says_so():
    assert "ignore_pad" not in SMALL.to_dict() and IGNORING.to_dict()["ignore_pad"] is True
    assert type(SMALL)(**IGNORING.to_dict()) == IGNORING
