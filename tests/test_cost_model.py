"""The model of the cost: fits, held-out errors, prices, estimates, and `bttlab cost`."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bttlab.cli import main
from bttlab.cost.configuration import CostError, FineTuning
from bttlab.cost.design import configurations
from bttlab.cost.estimate import RESERVED, TRANSFER, Estimator
from bttlab.cost.fit import GRID, CostModel, grid_step
from bttlab.cost.models import find_model
from bttlab.cost.prices import find_gpu, read_prices
from bttlab.cost.profiles import RECORDED, read_profiles
from bttlab.cost.published import compare, fit_published
from cost_profiles import BUDGET, largest_batch_of, made_up, seconds_of

UNSEEN = FineTuning(5, 112, 4, 6, 3, 200, sequence_length=48, method="full")


@pytest.fixture(scope="module")
def estimator():
    return Estimator(made_up())


def test_fit_finds_what_the_profiles_were_made_of(estimator):
    for config in (UNSEEN, replace(UNSEEN, method="lora")):
        for batch in (1, 3, 40):
            seconds = estimator.model.step_seconds(config, batch)
            assert seconds == pytest.approx(seconds_of(config, batch), rel=1e-3)
        wanted = largest_batch_of(config)
        assert estimator.model.largest_batch(config, BUDGET) == pytest.approx(wanted, abs=max(1, 0.05 * wanted))


def test_held_out_errors_of_exact_profiles_are_none(estimator):
    assert estimator.model.held_out.throughput_errors.max() < 1e-3
    assert estimator.model.held_out.batch_steps.max() <= 1
    assert estimator.held_out()["configurations"] == len(configurations())


def test_a_left_out_configuration_is_not_fitted_to():
    profiles = made_up()
    odd = replace(profiles.profiles[5], seconds=[10 * s for s in profiles.profiles[5].seconds])
    profiles.profiles[5] = odd
    ratios = CostModel(profiles.profiles, BUDGET).held_out.throughput
    assert np.allclose(ratios[5], 10, rtol=1e-3)


def test_intervals_hold_the_coefficients(estimator):
    for kind in ("time", "memory"):
        found = estimator.model.coefficients[kind]
        assert all(found.low[name] <= value <= found.high[name] for name, value in found.values.items())
    time = estimator.model.coefficients["time"]
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
    gpu = find_gpu("h100-sxm", read_prices())
    found = estimator.estimate(UNSEEN, gpu, 10**9, batch=16)
    low, middle, high = found.tokens_per_second
    # The made-up machine computes 20 GFLOP/s; 2 ms a step are the host's and stay.
    seconds = 2e-3 + (seconds_of(UNSEEN, 16) - 2e-3) * 20e9 / (1e12 * gpu.fp32_tflops)
    assert middle == pytest.approx(16 * 48 / seconds, rel=1e-3)
    assert found.cost[1] == pytest.approx(1e9 / middle / 3600 * gpu.usd_per_hour)
    assert found.cost[0] < found.cost[1] < found.cost[2] and low <= middle / TRANSFER and high >= middle * TRANSFER
    wanted = largest_batch_of(UNSEEN, int(1e9 * gpu.memory_gb) - RESERVED)
    assert found.largest_batch == pytest.approx(wanted, rel=0.02)


def test_what_was_not_measured_is_called_extrapolated(estimator):
    gpu = find_gpu("A40", read_prices())
    inside = estimator.estimate(replace(UNSEEN, experts=8), gpu, 10, batch=1)
    outside = estimator.estimate(replace(UNSEEN, hidden=1024), gpu, 10, batch=500)
    assert inside.extrapolated == []
    assert [text.split(" (")[0] for text in outside.extrapolated] == ["hidden 1024", "24,000 tokens a step"]


def test_every_price_has_its_source_and_date():
    for gpu in read_prices().values():
        assert gpu.source.startswith("https://") and gpu.read_in.startswith("https://")
        assert len(gpu.date.split("-")) == 3 and gpu.usd_per_hour > 0


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


GOOD = {"--model": "tiny", "--gpu": "A40", "--tokens": "1.5M"}


def test_cost_on_the_command_line(capsys):
    words = [word for pair in GOOD.items() for word in pair]
    code, out, _ = cost(capsys, *words, "--epochs", "2", "--json")
    values = json.loads(out)
    assert code == 0 and values["tokens"] == 3_000_000 and values["gpu"]["provenance"] == "published"
    hours, price = values["time"]["value"], values["gpu"]["usd_per_hour"]
    assert values["cost"]["value"] == pytest.approx(hours * price)
    assert values["held_out"]["configurations"] >= 24
    code, out, _ = cost(capsys, *words)
    assert code == 0
    for text in ("modelled", "published", "held-out error of throughput", "USD"):
        assert text in out


def test_check_on_the_command_line(capsys, tmp_path):
    made_up().write(tmp_path / "p.json")
    code, out, _ = cost(capsys, "check", "--profiles", str(tmp_path / "p.json"), "--json")
    found = json.loads(out)["held_out"]
    assert code == 0 and found["ours"]["throughput_median"] < 1e-3 < found["published"]["throughput_median"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--model": "mixtral-8x7b"}, "it does not fit A40 at batch 1, parameters and optimizer alone take"),
        ({"--gpu": "H100-SX"}, "GPU 'H100-SX' is not in the table of prices: the nearest is H100-SXM"),
        ({"--model": "gpt"}, "model 'gpt' is none of tiny, small"),
        ({"--model": "tiny,depth=3"}, "'depth' is none of layers"),
        ({"--model": "tiny,layers=x"}, "layers is 'x'"),
        ({"--tokens": "0"}, "tokens is 0"),
        ({"--tokens": "many"}, "--tokens many: give a number"),
        ({"--tokens": None}, "--tokens is missing"),
        ({"--epochs": "0"}, "--epochs is 0"),
        ({"--batch": "0"}, "batch is 0: on A40 it must be from 1 to"),
        ({"--profiles": "none.json"}, "no profiles in none.json"),
        ({"--prices": "none.json"}, "none.json is no table of GPU prices"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, changes, message):
    words = [word for pair in (GOOD | changes).items() if pair[1] is not None for word in pair]
    code, out, err = cost(capsys, *words)
    assert code == 2 and not out and err.count("\n") == 1 and message in err


def test_a_price_of_zero_and_too_few_profiles(capsys, tmp_path):
    table, few = tmp_path / "prices.json", tmp_path / "few.json"
    row = vars(find_gpu("A40", read_prices())) | {"usd_per_hour": 0}
    table.write_text(json.dumps({"gpus": [row]}))
    made_up(configurations()[:20]).write(few)
    words = [word for pair in GOOD.items() for word in pair]
    for option, path, message in (
        ("--prices", table, "usd_per_hour of A40 is 0: it must be above 0"),
        ("--profiles", few, "20 profiled configurations: the fit takes 24, 4 more are needed"),
    ):
        code, out, err = cost(capsys, *words, option, str(path))
        assert code == 2 and not out and err.count("\n") == 1 and message in err


def test_models_by_name():
    assert find_model("small,top_k=8,method=lora").sparsity == 1
    with pytest.raises(CostError, match="top_k is 9"):
        find_model("tiny,top_k=9")
