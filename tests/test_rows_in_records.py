"""A frozen table of any size stays in the host's memory: the rows of a sample's tokens come in its record."""

import numpy as np
import pytest
import torch
from torch import nn

from bttlab.card import open_trainer
from bttlab.card.processor import record_dtype, sample_records
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import check_program
from bttlab.compiler.machine import M
from bttlab.compiler.program import Options, compile
from bttlab.compiler.trace import trace
from bttlab.estimate.card import estimate
from bttlab.estimate.counts import OUTSIDE_LOOP
from bttlab.estimate.traffic import FLUSH
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.util.errors import BttlabError

from training_processor import (
    check_gradients,
    equal_bits,
    first_moments,
    fresh_processor,
    some_samples,
)

WORDS = 30522  # of BERT


class Net(nn.Module):
    """A frozen table of words, beside trained positions, and an encoder."""

    def __init__(self, words=WORDS, width=64, length=16, types=1, freeze=True, layers=1):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.count, self.length = nn.Embedding(words, width), words, length
        self.types = nn.Embedding(types, width) if types > 1 else None
        self.places, self.norm = nn.Embedding(length, width), nn.LayerNorm(width)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, nn.functional.gelu, batch_first=True)
            for _ in range(layers)
        )
        self.head, self.tags = nn.Linear(width, 5), nn.Linear(width, 7)
        self.words.weight.requires_grad_(not freeze)

    def forward(self, tokens):
        x = self.words(tokens if self.types is None else tokens % self.count)
        if self.types is not None:
            x = x + self.types(tokens // self.count)
        x = self.norm(x + self.places.weight[: tokens.shape[1]])
        for layer in self.encoder:
            x = layer(x)
        return self.head(x[:, 0]), self.tags(x[:, 1:])


@pytest.fixture(scope="module")
def large():
    return trace(Net().eval(), 16)


@pytest.mark.parametrize("types", [1, 2], ids=["one sentence", "two sentences"])
def test_losses_and_gradients_with_the_table_in_records_are_those_of_autograd(fast, types):
    program = check_gradients(fast, trace(Net(types=types).eval(), 16), (2, 9, 16), 1e-4, least=1 / 50)
    assert program.layout.in_records == "words.weight" and program.token_vectors == 4
    assert not [block for block in program.layout.blocks if block.name == "words.weight"]
    assert check_program(program, [3, 16]) == []


def test_a_program_that_reads_more_rows_than_the_record_has_is_found(large, monkeypatch):
    program = compile(large)
    monkeypatch.setattr("bttlab.compiler.memory.layout.Layout.token_vectors", 3)
    assert any("reads bank 0 vector 15" in text for text in check_program(program, [5]))


def test_the_loop_and_the_functional_model_give_the_same_bits(trainer_libraries, tmp_path, large):
    program, found = compile(large), []
    for which in ("loop", "fast"):
        with fresh_processor(trainer_libraries[which], tmp_path) as processor:
            found.append(first_moments(processor, program, large.parameters(), some_samples(large, [7])))
    assert found[0][0] == found[1][0] and equal_bits(found[0][1], found[1][1])


def test_the_card_trains_as_with_the_table_on_chip():
    """The rows are the same numbers wherever they come from, so the bits are, too."""
    network, trained = Net(words=90).eval(), []
    samples, optimizer = some_samples(trace(network, 16), [5, 16, 2, 9]), Optimizer("adamw")
    for rows_in_records in (None, True):
        model = trace(network, 16, rows_in_records=rows_in_records)
        trainer = open_trainer(model, "emulated", optimizer=optimizer)
        assert bool(trainer.program.token_vectors) == bool(rows_in_records)
        trainer.load_parameters(model.parameters())
        losses = trainer.train(samples, optimizer, 1e-3)
        trained.append((losses, trainer.predict(samples), trainer.store_parameters(), trainer.store_optimizer_state()))
    (losses, told, *states), (other_losses, other_told, *other_states) = trained
    assert losses.tolist() == other_losses.tolist()
    assert told.slots.tolist() == other_told.slots.tolist() and told.losses.tolist() == other_told.losses.tolist()
    for one, other in zip(states, other_states, strict=True):
        assert equal_bits(one, other)


def test_the_card_follows_pytorch_and_gives_the_table_back(large):
    samples, optimizer, losses = some_samples(large, [4, 16, 8, 3, 11]), Optimizer("momentum", batch_size=2), []
    trainer = open_trainer(large, "emulated", optimizer=optimizer)
    for each in (trainer, ReferenceTrainer(large)):
        each.load_parameters(large.parameters())
        losses.append(each.train(samples, optimizer, 1e-3))
    np.testing.assert_allclose(*losses, atol=1e-4)
    table = large.parameters()["words.weight"]
    assert np.array_equal(trainer.store_parameters()["words.weight"], table)
    changed = large.parameters() | {"words.weight": 2 * table}
    trainer.load_parameters(changed)
    reference = ReferenceTrainer(large)
    reference.load_parameters(changed)
    np.testing.assert_allclose(trainer.predict(samples).losses, reference.predict(samples).losses, atol=1e-4)


def test_records_have_the_rows_of_the_tokens_of_each_sample(large):
    program, table = compile(large), large.parameters()["words.weight"]
    samples = some_samples(large, [3, 16])
    records = sample_records(program, samples, np.zeros(2), Optimizer("sgd"), table=table)
    fixed = 1 + (M.OFFSET_TABLES + 1) * M.SEQUENCE // M.LANES
    assert records.dtype == record_dtype(program) and records.itemsize == (fixed + 16 * 4) * M.LANES * 4
    for record, tokens, length in zip(records, samples.tokens, samples.lengths, strict=True):
        assert np.array_equal(record["rows"].reshape(16, 64)[:length], table[tokens[:length]])


def test_a_call_has_as_many_samples_as_its_buffer_has_space_for(large, monkeypatch):
    trainer, samples = open_trainer(large, "emulated"), some_samples(large, [5, 4, 3, 6, 7])
    trainer.load_parameters(large.parameters())
    wanted = trainer.predict(samples).losses
    calls = []
    exchange = type(trainer)._exchange
    monkeypatch.setattr(type(trainer), "_exchange", lambda self, *a: (calls.append(len(a[1])), exchange(self, *a))[1])
    monkeypatch.setattr("bttlab.card.trainer.MOST_OF_RECORDS", 2 * record_dtype(trainer.program).itemsize + 1)
    assert trainer.predict(samples).losses.tolist() == wanted.tolist() and calls == [2, 2, 1]


def test_an_id_beyond_the_table_is_refused(large):
    trainer, samples = open_trainer(large, "emulated"), some_samples(large, [5, 4])
    trainer.load_parameters(large.parameters())
    samples.tokens[1, 2] = WORDS
    with pytest.raises(BttlabError, match=f"sample 1, position 2: token {WORDS}: it must be .* below {WORDS}"):
        trainer.train(samples, Optimizer("sgd"), 1e-3)


def test_a_row_that_no_parameter_could_have_is_refused(trainer_libraries, tmp_path, large):
    program, parameters, optimizer = compile(large), large.parameters(), Optimizer("sgd")
    records = sample_records(
        program, some_samples(large, [5]), np.zeros(1), optimizer, table=parameters["words.weight"]
    )
    records["rows"][0, 3, 2] = 2.0**63
    with fresh_processor(trainer_libraries["fast"], tmp_path) as processor:
        processor.load_program(program)
        processor.load(parameters)
        assert M.enums["Status"][processor.train(records, optimizer)["status"][0]].endswith("NOT_FINITE")


def test_more_rows_than_a_record_holds_are_refused_with_what_fits():
    fits = "take 1024 vectors of a sample's record, bank 0 has 512: choose samples of up to 16 tokens, or up to 256"
    with pytest.raises(ProgramError, match=fits):
        compile(trace(Net(width=512, words=90, length=32).eval(), 32, rows_in_records=True))
    fits = r"the parameters take 177810 vectors.*; or, with its rows in records, samples of up to 32 tokens"
    with pytest.raises(ProgramError, match=fits):
        compile(trace(Net(width=256, words=9000, length=40).eval(), 40))


def test_only_a_frozen_table_of_its_own_comes_in_records():
    with pytest.raises(ProgramError, match="rows of words cannot come in records: freeze a dense table"):
        trace(Net(words=90, freeze=False).eval(), 16, rows_in_records=True)
    frozen = "3,072 of 30,522 rows of words .cut_vocabulary. or words frozen, with up to 64 tokens"
    with pytest.raises(ProgramError, match=f"the parameters take 124302 vectors.*{frozen}"):
        compile(trace(Net(freeze=False).eval(), 16))
    with pytest.raises(ProgramError, match="the parameters take"):
        compile(trace(Net().eval(), 16, rows_in_records=False))


def test_a_machine_of_before_refuses_such_a_program(fast, large):
    image = compile(large).image
    assert image[0, 1] == M.VERSION + M.WITH_ROWS and image[1, 8] == 4
    assert compile(trace(Net(words=90).eval(), 16), Options()).image[0, 1] == M.VERSION


@pytest.mark.parametrize("in_records", [True, False])
def test_bytes_that_the_card_counts_are_those_of_the_estimate(in_records):
    """Counted: by the driver's buffers and in the kernel. Modelled: from the formats of records and results."""
    model = trace(Net(words=90).eval(), 16, rows_in_records=in_records)
    trainer, lengths = open_trainer(model, "emulated"), [3, 16, 5, 5]
    trainer.load_parameters(model.parameters())
    samples, rows = some_samples(model, lengths), 64 * trainer.program.token_vectors
    before = trainer.device.traffic
    trainer.train(samples, Optimizer("sgd"), 1e-3)
    counted = trainer.device.traffic.minus(before).minus(FLUSH)
    modelled = estimate(model, lengths).traffic
    assert counted == pytest.approx([4 * each for each in modelled])
    assert modelled.hbm_to_chip == 1344 + rows * sum(lengths) / 4 and modelled.chip_to_hbm == 320
    assert modelled.host_to_hbm == 1344 + 16 * rows + 320 and bool(rows) == in_records
    before = trainer.device.traffic
    trainer.predict(samples)
    assert trainer.device.traffic.minus(before) == pytest.approx([4 * each for each in modelled])


def test_rows_of_a_record_take_cycles_outside_the_loop():
    on_chip, in_records = (trace(Net(words=90).eval(), 16, rows_in_records=chosen) for chosen in (False, True))
    works = [estimate(model, [11]).work for model in (on_chip, in_records)]
    more = works[1].cycles[OUTSIDE_LOOP] - works[0].cycles[OUTSIDE_LOOP]
    assert 11 * 4 < more < 11 * 4 + 200  # a vector a cycle, and a request of HBM
