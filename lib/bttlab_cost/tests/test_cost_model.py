"""Prices, estimates and `bttlab cost`; the explorer and the figures in the lab."""

import json
from dataclasses import replace

import pytest

from bttlab.baseline.gpus import find_gpu, read_gpus
from bttlab.cli import main
from bttlab.lab import (
    CostExplorer,
    draw_accuracy,
    draw_largest_batches,
    draw_published_load,
    draw_stages,
    draw_utilisation,
)
from bttlab_cost.calibration import read_calibration
from bttlab_cost.estimate import Estimator, read_prices
from bttlab_cost.models import find_model
from bttlab_cost.parallel import Parallel
from bttlab_cost.step_memory import gradient_bytes
from command_line import refused, run_json

CASE = "mixtral-8x7b,method=qlora,sequence_length=79,top_k=2"


@pytest.fixture(scope="module")
def estimator():
    return Estimator()


@pytest.mark.parametrize(
    ("top_k", "length", "ran"),
    [(2, 79, 8), (8, 79, 2), (2, 174, 4), (8, 174, 1)],  # what the authors ran on an A40
)
def test_padded_batches_are_those_that_were_run(estimator, top_k, length, ran):
    config = find_model(f"mixtral-8x7b,sequence_length={length},top_k={top_k}")
    found = estimator.estimate(config, find_gpu("A40"), 1000)
    assert abs(found.padded_batch - ran) <= 1
    assert found.batch == found.padded_batch <= found.largest_batch
    assert found.peak_bytes[1] <= find_gpu("A40").memory_bytes


def test_what_was_not_measured_widens_the_band_and_is_said(estimator):
    def width(name, gpu):
        low, _, high = estimator.estimate(find_model(name), find_gpu(gpu), 10, batch=1).sequences_per_second
        return high / low

    known = width("mixtral-8x7b", "A40")
    assert known <= width("mixtral-8x7b", "H100") < width("llama-2-7b", "H100") < width("tiny", "H100")
    notes = estimator.estimate(find_model("tiny"), find_gpu("H100"), 10).notes
    assert [note.split(" ")[0] for note in notes] == ["H100-80GB", "the", "no"]
    beyond = estimator.estimate(find_model(CASE), find_gpu("A40"), 10, batch=9).notes
    assert beyond == ["a batch of 9 padded to 553 tokens does not fit, 8 would"]


GOOD = {"--model": CASE, "--gpu": "A40-48GB", "--tokens": "1.5M"}
WORDS = [word for pair in GOOD.items() for word in pair]


def test_cost_on_the_command_line(capsys):
    values = run_json(capsys, "cost", *WORDS, "--epochs", "2", "--batch", "8")
    assert values["tokens"] == 3_000_000 and values["gpu"]["provenance"] == "published"
    assert values["sequences_per_second"]["value"] == pytest.approx(1.6552, rel=0.15)
    hours, price = values["time"]["value"], values["price"]["usd_per_hour"]
    assert values["cost"]["value"] == pytest.approx(hours * price)
    assert values["held_out"]["one GPU left out"]["points"] == 77
    assert main(["cost", *WORDS]) == 0
    out = capsys.readouterr().out
    assert "modelled" in out and "published" in out
    found = run_json(capsys, "cost", *WORDS, "--gpus", "8", "--parallel", "zero2")["parallel"]
    assert (found["strategy"], found["gpus"], found["link"]["provenance"]) == ("zero2", 8, "published")
    assert found["sent_by_each"]["provenance"] == "modelled"


def test_all_gpus_are_ranked_by_one_providers_prices(capsys):
    values = run_json(capsys, "cost", "--model", "mixtral-8x7b,sequence_length=174", "--tokens", "1M")
    costs = [one["cost"]["value"] for one in values["gpus"] if one["cost"]]
    assert costs == sorted(costs) and len(costs) == len(read_prices())
    assert all(one["cost"] is None for one in values["gpus"][len(costs) :])
    assert {one["gpu"] for one in values["refused"]} == {"RTX-3090", "RTX-4090"}


@pytest.mark.long
def test_check_finds_the_recorded_calibration_again(capsys, tmp_path):
    found = run_json(capsys, "cost", "check", "--record", tmp_path / "model.json")
    assert found["memory"]["unsloth"]["points"] == 4
    assert found["errors"]["H100, kept aside"]["points"] == 19
    made, recorded = read_calibration(tmp_path / "model.json"), read_calibration()
    assert made.time.launch == pytest.approx(found["coefficients"]["launch"], rel=1e-3)
    for name in ("memory_spread", "flash_memory_spread"):
        assert getattr(recorded, name) == pytest.approx(getattr(made, name), rel=1e-3)
    for part in ("time", "low", "high", "flash", "memory", "flash_memory", "spread", "flash_spread"):
        assert vars(getattr(recorded, part)) == pytest.approx(vars(getattr(made, part)), rel=1e-3), part
    for name, errors in made.errors.items():
        assert vars(recorded.errors[name]) == pytest.approx(vars(errors), rel=1e-3, abs=1e-5), name
    for group, count, most in (("one GPU", 3, 0.25), ("one model and data set", 4, 0.20)):
        medians = [one["median"] for one in found["groups"][group].values()]
        assert len(medians) == count and max(medians) <= most


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--model": "mixtral-8x7b,method=full"}, "it does not fit A40-48GB at batch 1, what it holds between steps"),
        ({"--gpu": "H100-SX"}, "GPU 'H100-SX' is not in the table of GPUs: the nearest is H100-80GB"),
        ({"--model": "gpt"}, "model 'gpt' is none of tiny, small"),
        ({"--model": "tiny,depth=3"}, "'depth' is none of layers"),
        ({"--model": "tiny,layers=3,layers=4"}, "layers is given twice; leave one out"),
        ({"--model": "tiny,top_k=9"}, "top_k is 9"),
        ({"--tokens": "0"}, "tokens is 0"),
        ({"--tokens": None}, "--tokens is missing"),
        ({"--model": "tiny,checkpointing=maybe"}, "checkpointing 'maybe': choose yes or no"),
        ({"--model": "tiny,key_value_heads=3"}, "key_value_heads is 3: it must divide the 4 heads"),
        ({"--batch": "0"}, "batch is 0: on A40-48GB it must be from 1 to"),
        ({"--batch": "500"}, "batch is 500: on A40-48GB it must be from 1 to"),
        ({"--model": "llama-2-7b,method=full,state=bf16,padding=none"}, "a step 63.8 (45.5 to 89.3) of 45.0 GiB"),
        ({"--model": "llama-2-7b,optimizer=adamw-8bit,offload=optimizer"}, "with offload the host updates"),
        ({"--gpu": None, "--model": "mixtral-8x7b,method=full"}, "it does not fit"),
        ({"--prices": "none.json"}, "none.json is no table of GPU prices"),
        ({"--gpus": "0"}, "--gpus is 0: several GPUs are 2"),
        ({"--gpus": "8", "--parallel": "magic"}, "--parallel 'magic': choose ddp, zero1"),
        ({"--gpus": "8", "--link": "string"}, "--link 'string' is none of NVLink-3"),
        ({"--parallel": "ddp"}, "give their number with --gpus"),
        ({"--record": "x.json"}, "--record is not for bttlab cost estimate"),
        ({"--model": "llama-2-7b,state=bf16"}, "state has no effect with method=lora,precision=bf16"),
        ({"--model": "tiny,lora_rank=4"}, "lora_rank has no effect with method=full"),
        ({"--gpus": "8", "--parallel": "tensor"}, "packed weights are not split"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, changes, message):
    words = [word for pair in (GOOD | changes).items() if pair[1] is not None for word in pair]
    assert message in refused(capsys, "cost", *words)


def test_a_batch_beyond_the_middle_of_the_band_runs_with_a_note(capsys):
    words = ("--model", "llama-2-7b,padding=none,sequence_length=4096", "--gpu", "A100-80GB", "--tokens", "1M")
    found = run_json(capsys, "cost", *words)["largest_batch"]
    low, middle, high = (int(found[name]) for name in ("low", "value", "high"))
    assert low < middle < high and found["provenance"] == "modelled"
    beyond = run_json(capsys, "cost", *words, "--batch", str(high))
    memory = beyond["memory"]
    assert memory["low"] <= find_gpu("A100-80GB").memory_bytes < memory["value"] < memory["high"]
    assert f"low end of the memory's band alone; {middle} fit at its middle" in beyond["notes"][0]
    assert f"must be from 1 to {high}" in refused(capsys, "cost", *words, "--batch", str(high + 1))


def test_a_dense_model_has_a_feed_forward_layer_and_no_experts(capsys):
    dense = ("--model", "llama-2-7b", "--gpu", "A100-80GB", "--tokens", "1M")
    layers = {part["layer"] for part in run_json(capsys, "cost", *dense)["step"]["parts"]}
    assert "feed-forward" in layers and "experts" not in layers
    assert main(["cost", *dense]) == 0 and "experts" not in capsys.readouterr().out
    assert "experts" in {part["layer"] for part in run_json(capsys, "cost", *WORDS)["step"]["parts"]}


def test_moments_weights_and_offloading_take_the_bytes_of_their_papers(estimator):
    def held(changes):
        config = find_model(f"llama-2-7b,padding=none,sequence_length={changes}")
        return estimator.estimate(config, find_gpu("H200"), 10, batch=1).peak_bytes[1]

    config = find_model("llama-2-7b,method=full,state=bf16")
    both = 2 * config.parameters  # bytes: two moments lose a byte each
    fused = held("64,method=full,state=bf16,optimizer=adamw-fused")
    assert held("64,method=full,state=bf16") - fused == pytest.approx(
        2 * config.parameters, rel=0.01
    )  # the roots, BF16
    assert fused - held("64,method=full,state=bf16,optimizer=adamw-8bit") == pytest.approx(both, rel=0.01)
    moments = held("64,method=full,state=bf16,optimizer=adamw-fused") - held(
        "64,method=full,state=bf16,offload=optimizer"
    )
    assert moments == pytest.approx(4 * config.parameters, rel=0.01)
    packed = config.linear_elements()
    assert held("64") - held("64,method=lora-int8") == pytest.approx(packed, rel=0.02)
    assert held("64,method=lora-int8") - held("64,method=qlora") == pytest.approx((1 - 0.5 - 1 / 64) * packed, rel=0.01)
    assert held("64,offload=weights") < held("64") - 0.9 * config.weight_bytes
    slow = estimator.estimate(find_model("llama-2-7b,offload=weights"), find_gpu("A100-80GB"), 10, batch=1)
    sent = 2 * config.weight_bytes / (32e9 * 0.75)
    assert sum(seconds for (_, kind, _), seconds in slow.parts.items() if kind == "offloading") > sent
    assert "no run with offloading was fitted to" in slow.notes[-1]


def test_check_takes_no_options_of_an_estimate(capsys):
    assert "--gpu is not for bttlab cost check" in refused(capsys, "cost", "check", "--gpu", "H100")


def test_prices_that_do_not_rank(capsys, tmp_path):
    table = tmp_path / "prices.json"
    row = vars(read_prices()["A40-48GB"])
    for rows, message in (
        ([row | {"usd_per_hour": 0}], "usd_per_hour is 0: it must be greater than 0"),
        ([row, row | {"provider": "Another"}], "prices of Another and RunPod, secure cloud: one table ranks one"),
        ([row, row | {"usd_per_hour": 1}], "several prices of A40-48GB: leave one"),
        ([row | {"gpu": "A40"}], "'A40' is not a name of data/gpus.json; do you mean A40-48GB"),
    ):
        table.write_text(json.dumps({"gpus": rows}), encoding="utf-8-sig")  # a byte order mark is no part of it
        assert message in refused(capsys, "cost", *WORDS, "--prices", table)
    table.write_text('{"gpus": [{"gpu": "A40-48GB", "gpu": "A100-80GB"}]}')
    assert "the key 'gpu' occurs several times" in refused(capsys, "cost", *WORDS, "--prices", table)


def test_full_finetuning_in_bf16_holds_16_bytes_a_parameter():
    mixed = find_model("llama-2-7b,method=full")
    for state, size in (("fp32", 16), ("bf16", 8)):
        config = replace(mixed, state=state)
        assert config.state_bytes + gradient_bytes(config) == size * mixed.parameters
    assert "mixed precision, FP32 state" in str(mixed)


def test_the_menus_choose_models_and_several_gpus():
    estimator = Estimator()
    explorer = CostExplorer(estimator, read_gpus(), find_model("mixtral-8x7b,sequence_length=79"))
    explorer.gpu.value = "A100-80GB"
    assert explorer.strategy.disabled and "Over sparsity" in explorer._words.value
    explorer.model.value = "llama-2-7b"
    llama = find_model("llama-2-7b")
    assert explorer.estimate == estimator.estimate(llama, find_gpu("A100-80GB"), 10_000_000)
    assert explorer.top_k.disabled and "Over the number of GPUs" in explorer._words.value
    explorer.number.value, explorer.strategy.value = 4, "ddp"
    four = Parallel.of(4, "ddp", find_gpu("A100-80GB"))
    wanted = estimator.estimate(llama, find_gpu("A100-80GB"), 10_000_000, parallel=four)
    assert explorer.estimate == wanted and "on each of 4 GPUs" in explorer.results
    explorer.model.value = "mixtral-8x7b"
    assert (explorer.top_k.value, explorer.top_k.max) == (2, 8) and not explorer.top_k.disabled
    (band,) = (line for line in explorer._over_batch.lines if line.get_label().startswith("top 2"))
    ring = explorer._over_batch.collections[-1].get_offsets()  # of the choice, where the curve ends
    assert band.get_xdata()[-1] == explorer.estimate.batch == ring[0, 0]


def test_bars_of_the_published_figures_have_their_heights():
    calibration = read_calibration()
    figure = draw_largest_batches(calibration).figure
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights[:3] == [6, 8, 27] and heights[6:] == [6, 8, 20]
    figure = draw_published_load().figure
    bars = figure.axes[0].patches
    assert sum(bar.get_height() for bar in bars) == pytest.approx(200)  # per cent, before and after
    figure = draw_stages(calibration).figure
    bars = figure.axes[0].patches
    assert sum(bar.get_height() for bar in bars[:3]) == pytest.approx(1.1 + 1.85 + 0.05)
    figure = draw_utilisation().figure
    values = figure.axes[0].images[0].get_array()
    assert values[0].tolist() == [57.35, 92.18, 32.66, 69.46, 85.10]
    figure = draw_accuracy().figure
    assert max(figure.axes[0].lines[0].get_ydata()) == pytest.approx(85)
