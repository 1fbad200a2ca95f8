"""Modelled GPU baselines: a step's kernels, what they take on a GPU that is not here, and energy to a quality."""

import json

import numpy as np
import pytest
import torch

import tiny_baseline
from bttlab.baseline.gpus import find_gpu
from bttlab.baseline.run import FORMATS
from bttlab.baseline.step import Task
from bttlab.card import load_overlay
from bttlab.data import load_corpus
from bttlab.estimate import gpu as gpu_model
from bttlab.estimate.card import estimate
from bttlab.estimate.gpu import LAUNCH, batch_figures, count_kernels, known_kernels, model_step, typical_sample
from bttlab.lab import Savings, Workload, card_and_gpu_target, energy_to_quality, gpu_over_card
from bttlab.lab.comparison import TARGETS
from bttlab.lab.energy_meters import step_of
from bttlab.model import LEARNING_RATES, OPTIMIZERS, ModelConfig, Optimizer
from bttlab.util.errors import BttlabError

CONFIG = ModelConfig()
GPU = find_gpu("RTX-3090")


@pytest.fixture(scope="module")
def sample():
    return typical_sample(load_corpus("airline"), CONFIG)


def test_operations_of_a_step_are_those_of_its_shapes(sample):
    dense, tensor = (
        count_kernels(Task(ModelConfig(format=format), "bidirectional", sample, 4e-3, 0, "cpu"))
        for format in ("dense", "tensor")
    )
    tokens = int(sample.lengths[0])
    rows = 13 * tokens + 1  # six matrices an encoder and the slot pooler: all tokens; the intent pooler: one
    wanted = 3 * 2 * (rows * 768**2 + 768 * 22 + (tokens - 1) * 768 * 122)
    assert sum(kernel.flops for kernel in dense) == pytest.approx(wanted, rel=0.02)
    assert sum(kernel.moved for kernel in dense) > 3 * 4 * 14 * 768**2
    assert sum(kernel.flops for kernel in tensor) < 0.3 * 3 * 2 * 13 * tokens * 768**2
    assert all(50 < sum(kernel.launches for kernel in kernels) < 1000 for kernels in (dense, tensor))


def test_recorded_kernels_are_those_of_a_step(sample, monkeypatch):
    monkeypatch.setattr(gpu_model, "kernels_and_bytes", lambda *_: pytest.fail("a step was run"))
    recorded = {format: gpu_model.known_kernels(format, CONFIG, sample) for format in FORMATS}
    monkeypatch.undo()
    if json.loads(gpu_model.COUNTED.read_text())["torch"] == torch.__version__.partition("+")[0]:
        for format in FORMATS:
            kernels, held = gpu_model.kernels_and_bytes(format, CONFIG, sample)
            assert recorded[format] == (kernels, pytest.approx(held, rel=0.01))  # builds of PyTorch free a bit later
    four = gpu_model.known_kernels("dense", ModelConfig(encoders=4), sample)
    assert len(four[0]) > len(recorded["dense"][0])


def test_graphs_spare_launches_and_tensor_training_has_more_of_them(sample):
    steps = {(f, m): model_step(GPU, f, m, CONFIG, sample) for f in ("dense", "tt", "btt") for m in LAUNCH}
    for one in steps.values():
        for band in (one.seconds, one.watts, one.joules, one.process_bytes):
            assert 0 < band[0] < band[1] < band[2]
        assert GPU.idle_w < one.watts[0] and one.watts[2] < GPU.board_w
        assert one.joules[1] == pytest.approx(one.seconds[1] * one.watts[1])
        assert one.process_bytes[0] > one.tensor_bytes
    for format in ("dense", "tt", "btt"):
        assert steps[format, "graphs"].seconds[1] < steps[format, "eager"].seconds[1] / 2
    assert steps["dense", "eager"].kernels < steps["btt", "eager"].kernels < steps["tt", "eager"].kernels
    assert steps["dense", "eager"].tensor_bytes > 2 * 36.7e6 > 10 * steps["btt", "eager"].tensor_bytes


def test_ratios_over_the_card_are_quotients_of_both_models(sample):
    row = gpu_over_card(GPU, 2, sample)
    card = estimate(CONFIG, lengths={int(sample.lengths[0]): 4478})
    for mode, ratio in row.energy.items():
        step = model_step(GPU, "btt", mode, CONFIG, sample)
        assert ratio[0] < ratio[1] < ratio[2]
        assert ratio[1] == pytest.approx(step.joules[1] / card.energy_per_sample.value, rel=0.02)
    dense = model_step(GPU, "dense", "graphs", CONFIG, sample)
    assert row.memory == tuple(held / card.memory.bytes for held in dense.process_bytes)
    assert row.blocks[1] < row.memory[1]  # the machine occupies more than this model needs
    assert row.parameters == pytest.approx(9_179_280 / 300_288)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_dashboards_modelled_gpu_says_so(short_airline, optimizer):
    workload = Workload.of(load_corpus(short_airline), CONFIG)
    target = card_and_gpu_target(load_overlay("trainer", "emulated"), workload)
    run = target.make_run(20, LEARNING_RATES[optimizer], optimizer)
    run.start()
    assert run.join(60) and run.state == "finished" and run.error == ""
    beside = run.beside
    steps = [model_step(GPU, "btt", "graphs", CONFIG, workload.train[i : i + 1], optimizer) for i in workload.order(20)]
    assert beside.device_seconds == pytest.approx(sum(step.seconds[1] for step in steps))
    assert beside.history[-1][3] == pytest.approx(sum(step.joules[1] for step in steps))
    assert (beside.meter.provenance, beside.memory["footprint"].provenance, beside.time_provenance) == ("modelled",) * 3
    assert "modelled" in beside.name and np.isfinite(beside.losses).all() and len(beside.losses) == 20
    longest = workload.train[int(workload.train.lengths.argmax())]
    moments = len(OPTIMIZERS[optimizer].moments) * CONFIG.parameters_bytes
    by_sgd = model_step(GPU, "btt", "graphs", CONFIG, longest)
    assert beside.memory["tensors"].value == by_sgd.tensor_bytes + moments  # on the card they count, too
    bytes_moved = [sum(k.moved for k in known_kernels("btt", CONFIG, longest, rule)[0]) for rule in (optimizer, "sgd")]
    assert bytes_moved[0] >= bytes_moved[1] + moments


def test_the_savings_are_the_ratios_of_equal_utterances(sample):
    """On utterances of one length, the ratios of the first minute are those of `gpu_over_card`, band and all."""
    savings = Savings(CONFIG, sample[np.zeros(7, int)])
    row = gpu_over_card(GPU, CONFIG.encoders, sample)
    memory, tensor, _ = savings.ratios(7)
    low, middle, high = row.blocks
    assert memory.startswith(f"Memory: {middle:.0f} x (band {low:.0f} to {high:.0f}) = ") and "U50, tensor" in memory
    low, middle, high = row.energy["graphs"]
    assert (
        tensor.startswith(f"Energy: {middle:.2g} x (band {low:.2g} to {high:.2g}) = ") and "after 7 samples" in tensor
    )
    assert len(savings.ratios(0)) == 1  # no energy yet


def test_the_savings_are_of_the_optimizer_of_the_training(sample):
    samples, rule = sample[np.zeros(7, int)], Optimizer("adamw")
    card, tensor, dense = Savings(CONFIG, samples, optimizer=rule).contenders
    assert card.joules[7] / 7 == pytest.approx(step_of(CONFIG, rule, int(sample.lengths[0]))[:3])
    for contender, kind in ((tensor, "btt"), (dense, "dense")):
        step = model_step(GPU, kind, "graphs", CONFIG, sample, "adamw")
        assert contender.joules[7] / 7 == pytest.approx(np.array(step.joules))
        assert contender.footprint == step.process_bytes
    for contender, by_sgd in zip((tensor, dense), Savings(CONFIG, samples).contenders[1:], strict=True):
        assert (contender.joules[7] > by_sgd.joules[7]).all() and contender.footprint > by_sgd.footprint
    with pytest.raises(BttlabError, match="batch_size is 8: savings are modelled for an update of each sample; give"):
        Savings(CONFIG, samples, optimizer=Optimizer("adamw", batch_size=8))


@pytest.fixture(scope="module")
def alike():
    """Sixteen utterances of 13 tokens."""
    samples = tiny_baseline.samples(1000, CONFIG)
    return samples[np.flatnonzero(samples.lengths == 13)[:16]]


@pytest.mark.parametrize("format", ["dense", "btt"])
def test_a_batch_of_one_is_a_step(alike, format):
    """Two ways to write down the same step: the kernels are nearly the same."""
    seconds, joules = batch_figures(GPU, format, "graphs", CONFIG, alike[:1])
    step = model_step(GPU, format, "graphs", CONFIG, alike[:1])
    np.testing.assert_allclose(joules, step.joules, rtol=0.12)
    np.testing.assert_allclose(seconds, step.seconds, rtol=0.12)


def test_joules_are_samples_times_joules_a_sample(alike):
    rows = energy_to_quality(GPU, alike, TARGETS[0])
    assert len(rows) == 9 and sum(row.device == "U50" for row in rows) == 1
    for row in rows:
        assert row.joules[1] == pytest.approx(np.median(row.samples) * row.joules_per_sample[1])
        assert row.joules[0] < row.joules[1] < row.joules[2]
    (card,) = (row for row in rows if row.device == "U50")
    assert (card.format, card.batch) == ("tensor", 1)
    band = estimate(CONFIG, {13: 1}, card.optimizer).energy_at_clocks
    assert card.joules_per_sample == (band.low, band.value, band.high)
    with pytest.raises(ValueError, match="take one of"):
        energy_to_quality(GPU, alike, 0.5)
