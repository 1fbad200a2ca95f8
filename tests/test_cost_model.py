"""The model of profiles: fits, held-out errors; prices, estimates, and `bttlab cost`."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bttlab.baseline.gpus import find_gpu, read_gpus
from bttlab.cli import main
from bttlab.cost.configuration import CostError, FineTuning
from bttlab.cost.design import configurations
from bttlab.cost.estimate import Estimator
from bttlab.cost.fit import GRID, CostModel, grid_step
from bttlab.cost.models import find_model
from bttlab.cost.prices import read_prices
from bttlab.cost.profiles import RECORDED, read_profiles
from bttlab.cost.published import compare, fit_published
from bttlab.cost.xia2024 import throughputs
from cost_profiles import BUDGET, largest_batch_of, made_up, seconds_of

UNSEEN = FineTuning(5, 112, 4, 6, 3, 200, sequence_length=48, method="full")


CASE = "mixtral-8x7b,method=qlora,sequence_length=79,top_k=2"


@pytest.fixture(scope="module")
def model():
    profiles = made_up()
    return CostModel(profiles.profiles, profiles.budget_bytes)


@pytest.fixture(scope="module")
def estimator():
    return Estimator()


def test_fit_finds_what_the_profiles_were_made_of(model):
    for config in (UNSEEN, replace(UNSEEN, method="lora")):
        for batch in (1, 3, 40):
            seconds = model.step_seconds(config, batch)
            assert seconds == pytest.approx(seconds_of(config, batch), rel=1e-3)
        wanted = largest_batch_of(config)
        assert model.largest_batch(config, BUDGET) == pytest.approx(wanted, abs=max(1, 0.05 * wanted))


def test_held_out_errors_of_exact_profiles_are_none(model):
    assert model.held_out.throughput_errors.max() < 1e-3
    assert model.held_out.batch_steps.max() <= 1
    assert len(model.held_out.batches) == len(configurations())


def test_a_left_out_configuration_is_not_fitted_to():
    profiles = made_up()
    odd = replace(profiles.profiles[5], seconds=[10 * s for s in profiles.profiles[5].seconds])
    profiles.profiles[5] = odd
    ratios = CostModel(profiles.profiles, BUDGET).held_out.throughput
    assert np.allclose(ratios[5], 10, rtol=1e-3)


def test_intervals_hold_the_coefficients(model):
    for kind in ("time", "memory"):
        found = model.coefficients[kind]
        assert all(found.low[name] <= value <= found.high[name] for name, value in found.values.items())
    time = model.coefficients["time"]
    assert time.low["step"] == pytest.approx(2e-3, rel=1e-3) == time.high["step"]


def test_steps_of_the_batch_grid():
    assert GRID[:9] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert [grid_step(batch) for batch in (0, 1, 5, 6, 23, 24)] == [0, 1, 4, 5, 8, 9]


def test_published_model_finds_its_own_curves():
    def rate(config, batch):  # equation 2, in tokens
        return config.sequence_length * (2.5 * np.log(batch / config.sparsity) + 1.5)

    def largest(config):  # equation 1
        size = 4 * (config.parameters + config.adapters)
        return int(0.01 * (BUDGET - size) / (config.sequence_length * (0.2 + 0.8 * config.sparsity)))

    base = FineTuning(2, 64, 4, 8, 1, 128)
    profiles = []
    for profile in made_up([replace(base, top_k=k) for k in (1, 2, 8)]).profiles:
        seconds = [b * 64 / rate(profile.config, b) for b in profile.batches]
        profiles.append(replace(profile, seconds=seconds, largest_batch=largest(profile.config)))
    throughput, batch = fit_published(profiles, BUDGET)
    unseen = replace(base, top_k=4)
    assert throughput(unseen, 3) == pytest.approx(rate(unseen, 3))
    assert batch(unseen) == pytest.approx(largest(unseen), rel=0.01)


def test_estimate_is_hours_times_price(estimator):
    found = estimator.estimate(find_model(CASE), find_gpu("a40"), 10**6, batch=8)
    low, middle, high = found.sequences_per_second
    assert middle == pytest.approx(1.6552, rel=0.15)  # published
    assert low < middle < high
    assert found.tokens_per_second[1] == pytest.approx(79 * middle)
    assert found.hours[1] == pytest.approx(10**6 / 79 / middle / 3600)
    assert found.cost[1] == pytest.approx(found.hours[1] * read_prices()["A40-48GB"].usd_per_hour)
    assert found.cost[0] < found.cost[1] < found.cost[2]
    assert sum(found.parts.values()) == pytest.approx(8 / middle)
    assert found.notes == []


def test_the_band_holds_nearly_all_published_points(estimator):
    inside = 0
    for point in throughputs():
        low, _, high = estimator.sequences_per_second(point.config, find_gpu(point.gpu), point.batch)
        inside += low <= point.sequences_per_second <= high
    assert inside / len(throughputs()) >= 0.85


@pytest.mark.parametrize(
    ("top_k", "length", "ran"),
    [(2, 79, 8), (8, 79, 2), (2, 174, 4), (8, 174, 1)],  # what the authors ran on an A40
)
def test_padded_batches_are_those_that_were_run(estimator, top_k, length, ran):
    config = find_model(f"mixtral-8x7b,sequence_length={length},top_k={top_k}")
    found = estimator.estimate(config, find_gpu("A40"), 1000)
    assert abs(found.padded_batch - ran) <= 1
    assert found.batch == found.padded_batch <= found.largest_batch
    assert found.peak_bytes <= find_gpu("A40").memory_bytes


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


def test_recomputation_and_quantisation_save_memory(estimator):
    gpu = find_gpu("A100-80GB")
    least = [estimator.largest_batch(find_model(f"llama-2-7b,{change}"), gpu) for change in (
        "method=full,checkpointing=no", "method=lora,checkpointing=no", "method=lora", "method=qlora")]  # fmt: skip
    assert least == sorted(least) and least[0] < least[1] < least[2] < least[3]


def test_every_price_is_of_one_provider_with_its_source_and_date():
    prices = read_prices()
    assert len({(price.provider, price.date, price.read_in) for price in prices.values()}) == 1
    for price in prices.values():
        assert price.gpu in read_gpus()
        assert price.source.startswith("https://") and price.read_in.startswith("https://")
        assert len(price.date.split("-")) == 3 and price.usd_per_hour > 0


def test_gpus_have_sources_and_names_of_the_data_files():
    for name in ("A40-48GB", "A100-40GB", "A100-80GB", "H100-80GB", "h100-sxm", "A40"):
        assert find_gpu(name).source.startswith("https://")
    names = [known for gpu in read_gpus().values() for known in (gpu.gpu, *gpu.aliases)]
    assert len(names) == len({name.casefold() for name in names})


def test_recorded_profiles_meet_what_is_claimed():
    profiles = read_profiles(RECORDED)
    found = compare(profiles)
    assert len(profiles.profiles) >= 24
    assert found["ours"]["throughput_median"] <= 0.10 < found["published"]["throughput_median"]
    assert found["ours"]["largest_batch_steps_most"] <= 1


def cost(capsys, *arguments):
    code = main(["cost", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


GOOD = {"--model": CASE, "--gpu": "A40-48GB", "--tokens": "1.5M"}


def test_cost_on_the_command_line(capsys):
    words = [word for pair in GOOD.items() for word in pair]
    code, out, _ = cost(capsys, *words, "--epochs", "2", "--batch", "8", "--json")
    values = json.loads(out)
    assert code == 0 and values["tokens"] == 3_000_000 and values["gpu"]["provenance"] == "published"
    assert values["sequences_per_second"]["value"] == pytest.approx(1.6552, rel=0.15)
    hours, price = values["time"]["value"], values["price"]["usd_per_hour"]
    assert values["cost"]["value"] == pytest.approx(hours * price)
    assert values["held_out"]["one GPU left out"]["points"] == 77
    code, out, _ = cost(capsys, *words)
    assert code == 0
    for text in ("modelled", "published", "8 when padded to 553", "USD", "GiB"):
        assert text in out


def test_all_gpus_are_ranked_by_one_providers_prices(capsys):
    code, out, _ = cost(capsys, "--model", "mixtral-8x7b,sequence_length=174", "--tokens", "1M", "--json")
    values = json.loads(out)
    costs = [one["cost"]["value"] for one in values["gpus"] if one["cost"]]
    assert code == 0 and costs == sorted(costs) and len(costs) == len(read_prices())
    assert all(one["cost"] is None for one in values["gpus"][len(costs) :])
    assert {one["gpu"] for one in values["refused"]} == {"RTX-3090", "RTX-4090"}
    code, out, _ = cost(capsys, "--model", "mixtral-8x7b,sequence_length=174", "--tokens", "1M")
    assert code == 0 and "RunPod" in out and "2 GPUs do not fit it" in " ".join(out.split())


def test_a_gpu_without_a_price_has_time_but_no_cost(capsys):
    code, out, _ = cost(capsys, *[word for pair in (GOOD | {"--gpu": "RTX-A6000"}).items() for word in pair])
    assert code == 0 and "cost           unknown" in out and " h (" in out


def test_check_on_the_command_line(capsys, tmp_path):
    made_up().write(tmp_path / "p.json")
    code, out, _ = cost(capsys, "check", "--profiles", str(tmp_path / "p.json"), "--json")
    found = json.loads(out)["held_out"]
    assert code == 0 and found["ours"]["throughput_median"] < 1e-3 < found["published"]["throughput_median"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--model": "mixtral-8x7b,method=full"}, "it does not fit A40-48GB at batch 1, what it holds between steps"),
        ({"--gpu": "H100-SX"}, "GPU 'H100-SX' is not in the table of GPUs: the nearest is H100-80GB"),
        ({"--model": "gpt"}, "model 'gpt' is none of tiny, small"),
        ({"--model": "tiny,depth=3"}, "'depth' is none of layers"),
        ({"--model": "tiny,layers=x"}, "layers is 'x'"),
        ({"--tokens": "0"}, "tokens is 0"),
        ({"--tokens": "many"}, "--tokens many: give a number"),
        ({"--tokens": None}, "--tokens is missing"),
        ({"--epochs": "0"}, "--epochs is 0"),
        ({"--model": "tiny,checkpointing=maybe"}, "checkpointing 'maybe': choose yes or no"),
        ({"--model": "tiny,key_value_heads=3"}, "key_value_heads is 3: it must divide the 4 heads"),
        ({"--model": "tiny,precision=fp8"}, "precision 'fp8': choose fp32 or bf16"),
        ({"--batch": "0"}, "batch is 0: on A40-48GB it must be from 1 to"),
        ({"--batch": "99"}, "batch is 99: on A40-48GB it must be from 1 to"),
        ({"--gpu": None, "--model": "mixtral-8x7b,method=full"}, "it does not fit"),
        ({"--profiles": "mine.json"}, "--profiles belongs to check"),
        ({"--prices": "none.json"}, "none.json is no table of GPU prices"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, changes, message):
    words = [word for pair in (GOOD | changes).items() if pair[1] is not None for word in pair]
    code, out, err = cost(capsys, *words)
    assert code == 2 and not out and err.count("\n") == 1 and message in err


def test_prices_that_do_not_rank(capsys, tmp_path):
    table, words = tmp_path / "prices.json", [word for pair in GOOD.items() for word in pair]
    row = vars(read_prices()["A40-48GB"])
    for rows, message in (
        ([row | {"usd_per_hour": 0}], "usd_per_hour of A40-48GB is 0: it must be above 0"),
        ([row, row | {"provider": "Another"}], "prices of Another and RunPod, secure cloud: one table ranks one"),
    ):
        table.write_text(json.dumps({"gpus": rows}))
        code, out, err = cost(capsys, *words, "--prices", str(table))
        assert code == 2 and not out and err.count("\n") == 1 and message in err


def test_check_of_profiles_refuses_what_it_cannot_fit(capsys, tmp_path):
    few = tmp_path / "few.json"
    made_up(configurations()[:20]).write(few)
    for path, message in (
        (few, "20 profiled configurations: the fit takes 24, 4 more are needed"),
        (tmp_path / "none.json", "no profiles in"),
    ):
        code, out, err = cost(capsys, "check", "--profiles", str(path))
        assert code == 2 and not out and err.count("\n") == 1 and message in err


def test_models_by_name():
    assert find_model("small,top_k=8,method=lora").sparsity == 1
    with pytest.raises(CostError, match="top_k is 9"):
        find_model("tiny,top_k=9")
