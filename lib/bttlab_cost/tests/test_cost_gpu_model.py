"""The model of a GPU step: what it counts, how it adds up, and how far from published measurements it is."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest

from bttlab.baseline.gpus import find_gpu
from bttlab_cost import others, xia2024
from bttlab_cost.calibration import errors_of, errors_of_equation_2, modelled_largest_batches, predict, read_calibration
from bttlab_cost.calibration import stage_seconds as modelled_stages
from bttlab_cost.configuration import FineTuning
from bttlab_cost.estimate import Estimator
from bttlab_cost.fitting import fit_time, memory_errors
from bttlab_cost.gpu_step import Coefficients, operator_seconds, stages_of_steps
from bttlab_cost.models import find_model
from bttlab_cost.operators import Operator, operators

A40 = find_gpu("A40")


@pytest.fixture(scope="module")
def recorded():
    return read_calibration()


@pytest.mark.parametrize(
    ("name", "published"),
    [("mixtral-8x7b", 46.7e9), ("llama-2-7b", 6_738_415_616), ("blackmamba-2.8b", 2.8e9)],
)
def test_models_have_their_published_sizes(name, published):
    assert find_model(name).parameters == pytest.approx(published, rel=0.01)


def test_qlora_holds_four_bits_a_weight_and_trains_adapters_of_the_experts():
    mixtral = find_model("mixtral-8x7b")
    assert mixtral.weight_bytes == pytest.approx(23.35e9, rel=0.06)  # §V-A of the paper, without scales
    by_hand = 32 * 16 * (8 * 3 * (4096 + 14_336) + 4096 + 8)
    assert mixtral.adapters == by_hand
    assert find_model("mixtral-8x7b,adapted=all").adapters == by_hand + 32 * 16 * (2 * 8192 + 2 * (4096 + 1024))


def test_lora_keeps_weights_adapters_and_their_moments():
    config = find_model("llama-2-7b,method=lora")
    kept = config.adapters * 4 * 3  # FP32: an adapter and AdamW's two moments
    assert config.adapters and config.state_bytes == 2 * config.parameters + kept


def test_products_of_a_step_are_two_operations_for_each_weight_and_token():
    tokens = 2**15  # no tile is half empty
    for name, passes in (
        ("blackmamba-2.8b,top_k=8", 3),
        ("mixtral-8x7b", 3),
        ("llama-2-7b,checkpointing=no,kernels=eager", 2),
    ):
        config = find_model(f"{name},mixer=mamba") if name.startswith("black") else find_model(name)
        output = config.vocabulary * config.hidden
        router = config.layers * config.hidden * config.experts  # its kernels are launches in this model
        blocks = config.active - output - router
        scores = 0 if config.mixer == "mamba" else config.layers * 2 * config.sequence_length * config.hidden
        flops = sum(one.times * one.flops for one in operators(config, tokens))
        # A frozen matrix has no gradient; with checkpointing the blocks are computed twice.
        again = 3 if config.method == "full" else 2
        backward = 3 if config.checkpointing else 2
        wanted = 2 * tokens * (passes * blocks + again * output + (1 + backward) * scores)
        assert flops == pytest.approx(wanted, rel=0.02), name


def test_dequantisation_reads_four_bits_and_writes_two_bytes_in_every_pass():
    mixtral = find_model("mixtral-8x7b")
    packed = 32 * (8 * 3 * 4096 * 14_336 + 2 * 4096**2 + 2 * 4096 * 1024)
    moved = sum(one.times * one.traffic for one in operators(mixtral, 4096) if one.kind == "dequantisation")
    assert moved == pytest.approx(3 * packed * 2.5, rel=0.01)
    assert not any(one.kind == "dequantisation" for one in operators(replace(mixtral, method="lora"), 4096))


def test_experts_get_the_tokens_that_are_routed_to_them():
    def of_experts(top_k):
        config = find_model(f"blackmamba-2.8b,top_k={top_k}")
        return sum(one.times * one.flops for one in operators(config, 8192) if one.kind == "experts")

    assert of_experts(8) == pytest.approx(8 * of_experts(1), rel=0.03)  # half a tile


@pytest.mark.parametrize(
    ("operator", "seconds"),
    [
        (Operator("forward", "experts", "experts", 3, flops=149.7e12, traffic=1), 3 / 0.5),
        (Operator("forward", "experts", "experts", 1, flops=1, traffic=696e9), 1 / 0.25),
        (Operator("forward", "adapters", "experts", 1, elementwise=696e9), 2 / 0.25),
        (Operator("forward", "adapters", "experts", 2, kernels=10, traffic=1), 2 * 10 * 1e-3),
        (Operator("forward", "dequantisation", "experts", 1, kernels=1, wrapped=2), 1e-3 + 2 * 4e-3),
    ],
)
def test_an_operator_takes_the_longest_of_arithmetic_bytes_and_launches(operator, seconds):
    found = Coefficients(0.5, 0.25, 1e-3, 4e-3, 2.0, 0.0, 0.0)
    assert operator_seconds(operator, A40, "bf16", found) == pytest.approx(seconds)


def test_padding_is_the_expected_longest_of_exponential_lengths():
    config = FineTuning(sequence_length=174, padding="longest")
    excess = np.random.default_rng(0).exponential(100, size=(200_000, 6)) - 100 * math.log(2)
    assert config.padded_length(6, 100.0) == pytest.approx(174 + excess.max(1).mean(), rel=0.01)
    assert replace(config, padding="none").padded_length(6, 100.0) == 174
    assert config.padded_length(10**6, 1000.0) == config.longest_length == 1024
    assert replace(config, sequence_length=2048).padded_length(4, 100.0) == 2048


def test_median_error_over_the_77_points(recorded):
    points = xia2024.throughputs()
    assert len(points) == 77 and {point.gpu for point in points} == {"A40-48GB", "A100-40GB", "A100-80GB"}
    off = [abs(predict(point, recorded.time) / point.sequences_per_second - 1) for point in points]
    assert np.median(off) <= 0.08
    assert recorded.errors["fitted"].median == pytest.approx(np.median(off), rel=0.01)


def test_stages_of_a_step_on_the_a40(recorded):
    for point in xia2024.stages():
        modelled = modelled_stages(point, recorded.time)
        for stage in ("forward", "backward"):
            assert modelled[stage] == pytest.approx(point.seconds[stage], rel=0.25), point
        assert modelled["optimizer"] == pytest.approx(point.seconds["optimizer"], rel=0.35)


def test_projects_that_were_held_out_are_predicted_within_the_band(recorded):
    held_out = [project for project in others.projects() if not project.fitted]
    points = [point for project in held_out for point in project.throughputs]
    assert len(held_out) >= 4 and len({project.project for project in others.projects()}) >= 8
    found = errors_of((point, recorded.flash) for point in points)
    assert found.points == 18 and found.median <= 0.12
    assert vars(recorded.errors["FlashAttention, projects held out"]) == pytest.approx(vars(found), rel=1e-3)
    estimator, inside = Estimator(), 0
    for point in points:
        low, _, high = estimator.sequences_per_second(point.config, find_gpu(point.gpu), point.batch)
        inside += low <= point.sequences_per_second <= high
    assert inside >= 0.85 * len(points)


def test_peaks_of_memory_of_other_projects(recorded):
    errors = memory_errors(recorded.flash_memory)
    assert errors["qwen"].median <= 0.06 and errors["unsloth"].median <= 0.15
    assert errors["torchtune"].bias > 0.5  # its loss never holds all logits; the page says so


def test_a_step_that_waits_for_its_host_has_a_wider_band(recorded):
    estimator, gpu = Estimator(), find_gpu("A100")
    widths, shares = [], []
    for length in (128, 1024, 8192):
        found = estimator.estimate(find_model(f"llama-2-7b,padding=none,sequence_length={length}"), gpu, 10**6, batch=1)
        widths.append(found.sequences_per_second[2] / found.sequences_per_second[0])
        shares.append(found.host_share)
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.5 > 0.05 > shares[2]
    assert widths == sorted(widths, reverse=True) and widths[0] > 1.5 * widths[2]


@pytest.mark.long
@pytest.mark.parametrize("without", ["BlackMamba-2.8B", "flash"])
def test_one_calibration_is_found_from_every_start_order_and_last_bit(without):
    flash = without == "flash"
    points = [point for point in xia2024.throughputs() if point.model != without]
    stages = [point for point in xia2024.stages() if point.model != without]
    if flash:
        points, stages = [point for one in others.projects() if one.fitted for point in one.throughputs], []
    found = astuple(fit_time(points, stages, flash=flash))
    random = np.random.default_rng(0)
    moved = [
        replace(point, sequences_per_second=point.sequences_per_second * (1 + 1e-12 * random.standard_normal()))
        for point in random.permutation(np.array(points, dtype=object))
    ]
    start = Coefficients(0.25, 0.95, 50e-6, 2e-3, 3.0, 40.0, 0.1)
    assert astuple(fit_time(moved, stages, [start], flash)) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("top_k", [2, 8])
def test_the_seconds_have_complex_derivatives(top_k):
    config, gpus = find_model(f"mixtral-8x7b,sequence_length=79,top_k={top_k}"), [A40, find_gpu("A100")]
    middle = np.log([0.5, 0.7, 16e-6, 0.7e-3, 0.9, 130.0])

    def seconds_at(step):
        moved = step * np.eye(7)
        fitted = Coefficients(*np.exp(middle + moved[:, :6]).T[..., None], 0.2 + moved[:, 6:])
        return stages_of_steps(config, gpus, [4, 17], fitted)

    exact, over, under = seconds_at(1e-20j), seconds_at(1e-5), seconds_at(-1e-5)
    for stage, seconds in exact.items():
        np.testing.assert_allclose(seconds.imag / 1e-20, (over[stage] - under[stage]) / 2e-5, rtol=1e-5, atol=1e-9)


def test_largest_batches_are_within_one(recorded):
    rows = modelled_largest_batches(recorded.memory)
    assert [point.largest_batch for point, _ in rows] == [6, 8, 27]
    assert all(abs(point.largest_batch - modelled) <= 1 for point, modelled in rows)


def test_published_equations_in_their_authors_reading():
    points = [point for point in xia2024.throughputs() if point.gpu == "A40-48GB" and point.model == "Mixtral-8x7B"]
    series = [point for point in points if point.data_set == "commonsense"]
    fitted = xia2024.equation_2(series)
    rates = np.array([point.sequences_per_second for point in series])
    # The parabola of squared errors over both coefficients has its least there.
    batch = np.array([point.batch for point in series])
    terms = np.log(batch ** (1 / (np.array([point.config.sparsity for point in series]) * 1.8)))
    slope, constant = np.polyfit(terms, rates, 1)
    assert float(fitted(8, 0.25)) == pytest.approx(slope * math.log(8 ** (1 / (0.25 * 1.8))) + constant)
    assert [xia2024.equation_1(point) for point in xia2024.largest_batches()] == [6, 8, 20]
    assert errors_of_equation_2().points == 77
