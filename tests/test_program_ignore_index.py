"""Traced modules whose loss leaves out a label: neither loss nor gradient, as PyTorch's ignore_index."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bttlab.card import open_trainer
from bttlab.card.processor import sample_records
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import check_program
from bttlab.compiler.module_file import load_module
from bttlab.compiler.program import Options, compile
from bttlab.compiler.trace import trace
from bttlab.data import Samples
from bttlab.model import Optimizer, ReferenceTrainer, batch_losses, config_of, network_of
from bttlab.util.errors import BttlabError

from training_processor import equal_bits

LENGTH = 14


class Tagger(nn.Module):
    """Labels of tokens, and of the sample if `intents`."""

    def __init__(self, classes, intents=0):
        super().__init__()
        self.table, self.layer = nn.Embedding(40, 32), nn.Linear(32, 32)
        self.head, self.of_sample = nn.Linear(32, classes), nn.Linear(32, intents) if intents else None

    def forward(self, tokens):
        x = torch.tanh(self.layer(self.table(tokens)))
        return self.head(x) if self.of_sample is None else (self.of_sample(x[:, 0]), self.head(x[:, 1:]))


def tagger(classes, ignore_index, intents=0):
    torch.manual_seed(0)
    return trace(Tagger(classes, intents), LENGTH, ignore_index=ignore_index)


def samples_of(model, lengths=(9, 14, 2), seed=0):
    """Samples of which every second and third word is left out, and others are not."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(1, 40, (len(lengths), LENGTH)).astype(np.int32)
    slots = draw.integers(model.ignore_index == 0, model.slots, tokens.shape).astype(np.int32)
    slots[:, 0] = slots[:, 2::3] = slots[:, 3::3] = model.ignore_index
    for row, labels, length in zip(tokens, slots, lengths, strict=True):
        row[length:] = labels[length:] = 0
    intents = draw.integers(0, model.intents, len(lengths)).astype(np.int32)
    return Samples(tokens, np.asarray(lengths, np.int32), intents, slots)


def wanted(model, sample, smoothing=0.0):
    """Loss without label smoothing, and gradients with it, in float64 by PyTorch."""
    network, length = network_of(model).double(), int(sample.lengths[0])
    intents, slots = network(torch.from_numpy(sample.tokens[0, :length]).long())
    labels = torch.from_numpy(sample.slots[0, 1:length]).long()
    losses = []
    for smooth in (0.0, smoothing):
        value = F.cross_entropy(slots, labels, ignore_index=model.ignore_index, label_smoothing=smooth)
        if intents is not None:
            value = value + F.cross_entropy(
                intents[None], torch.from_numpy(sample.intents).long(), label_smoothing=smooth
            )
        losses.append(value)
    losses[1].backward()
    return losses[0].item(), {name: p.grad.numpy() for name, p in network.named_parameters()}


@pytest.mark.parametrize("ignore_index", [0, -100])
@pytest.mark.parametrize("classes, intents", [(5, 0), (16, 0), (33, 4)], ids=["5", "16", "33 and an intent"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses_and_gradients_are_pytorchs(ignore_index, classes, intents, smoothing):
    model = tagger(classes, ignore_index, intents)
    parameters, samples = model.parameters(), samples_of(model)
    card = open_trainer(model, "emulated")
    for sample in (samples[n] for n in range(len(samples))):
        loss, gradients = wanted(model, sample, smoothing)
        for trainer in (card, ReferenceTrainer(model)):
            trainer.load_parameters(parameters)
            assert trainer.predict(sample).losses[0] == pytest.approx(loss, abs=1e-5)
            assert trainer.train(sample, Optimizer("sgd"), 1.0, smoothing)[0] == pytest.approx(loss, abs=1e-5)
            after = trainer.store_parameters()
            largest = max(np.abs(gradient).max() for gradient in gradients.values())
            for name, gradient in gradients.items():
                assert np.abs(parameters[name] - after[name] - gradient).max() < 1e-4 * largest, name


@pytest.mark.parametrize("ignore_index", [0, -100])
def test_words_that_are_left_out_may_be_any(ignore_index):
    """Without the mask their label counts; with it, their embeddings alone have no gradient."""
    model = tagger(5, ignore_index)
    sample = samples_of(model, (9,))
    card = open_trainer(model, "emulated")
    card.load_parameters(model.parameters())
    card.train(sample, Optimizer("sgd"), 1.0)
    moved = np.abs(card.store_parameters()["table.weight"] - model.parameters()["table.weight"]).max(1) > 0
    labelled = set(sample.tokens[0, 1:9][sample.slots[0, 1:9] != ignore_index].tolist())
    assert set(np.flatnonzero(moved)) == labelled


def test_predictions_of_labelled_words_are_those_without_a_mask():
    plain, ignoring = tagger(5, None), tagger(5, -100)
    samples = samples_of(ignoring)
    any_labels = Samples(samples.tokens, samples.lengths, samples.intents, np.zeros_like(samples.slots))
    found = []
    for model, given in ((plain, any_labels), (ignoring, samples)):
        card = open_trainer(model, "emulated")
        card.load_parameters(plain.parameters())
        found.append(card.predict(given).slots)
    is_labelled = (samples.slots != -100) & (np.arange(LENGTH) < samples.lengths[:, None])
    assert (found[0] == found[1])[is_labelled].all() and is_labelled.sum() > 5


@pytest.mark.parametrize("ignore_index", [0, -100])
def test_the_program_has_no_hazards(ignore_index):
    assert check_program(compile(tagger(33, ignore_index, 4)), (2, 14)) == []


@pytest.mark.long
def test_the_loop_gives_the_bits_of_the_fast_emulation(loop, fast):
    model = tagger(19, -100, 3)
    program, parameters, samples, states = compile(model, Options()), model.parameters(), samples_of(model), []
    for processor in (loop, fast):
        processor.load_program(program)
        processor.load(parameters)
        optimizer = Optimizer("adamw")
        results = processor.train(sample_records(program, samples, [0.01] * 3, optimizer, 0.1), optimizer)
        assert (results["status"] == 1).all()
        states.append([*processor.store()[:2], {"slots": results["slots"], "loss": results["loss"]}])
    assert all(equal_bits(one, other) for one, other in zip(*states, strict=True))


def test_batches_have_the_losses_of_single_samples():
    model = tagger(5, -100)
    samples = samples_of(model, (9, 9, 9))
    single = ReferenceTrainer(model).predict(samples).losses
    assert batch_losses(network_of(model), samples).detach().numpy() == pytest.approx(single, rel=1e-5)


def test_what_the_mask_is_not_for_is_one_line():
    with pytest.raises(ProgramError, match=r"ignore_index is 7: choose 0 \(PAD of a corpus\), -100, or None"):
        trace(Tagger(5), LENGTH, ignore_index=7)
    model = tagger(5, -100)
    samples = samples_of(model)
    samples.slots[1] = -100
    with pytest.raises(BttlabError, match=r"sample 1.*: a word must have another label, since the model ignores -100"):
        samples.validate(model)
    with pytest.raises(BttlabError, match="slot label -100: it must be at least 0"):
        samples_of(model).validate(tagger(5, None))


def test_only_a_model_that_ignores_a_label_says_so():
    assert "ignore_index" not in tagger(5, None).to_dict() and tagger(5, -100).to_dict()["ignore_index"] == -100


def test_a_file_says_it_by_an_attribute(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    ignore_index = 0\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table, self.head = nn.Embedding(40, 32), nn.Linear(32, 5)\n"
        "    def forward(self, tokens):\n"
        "        return self.head(self.table(tokens))\n"
    )
    config = load_module(f"{file}:Net", LENGTH).config
    assert config.ignore_index == 0 and config_of(config.to_dict()) == config
