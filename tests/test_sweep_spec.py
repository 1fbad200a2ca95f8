"""A sweep's specification: what it means, and how each mistake is told before anything starts."""

import shutil
import textwrap

import pytest

import tiny_runs
from bttlab.model import LEARNING_RATES, ModelConfig
from bttlab.runs.recipe import flat, settings_of
from bttlab.runs.sweep import SpecError, read_spec
from bttlab.runs.sweep.search import Search
from bttlab.runs.sweep.spec import spec_of
from bttlab.runs.sweep.trials import TrialMaker
from bttlab.util.errors import BttlabError

from conftest import ROOT

NET = ROOT / "tests" / "helpers" / "sample_modules.py"


def _trials(**values):
    spec = spec_of(values, "test")
    return Search(spec, TrialMaker(spec)).planned


def _of_file(path):
    spec = read_spec(path)
    return Search(spec, TrialMaker(spec))


def _varied(**values):
    return [trial.varied for trial in _trials(**values)]


def test_a_grid_has_every_combination_once():
    found = _varied(vary={"seed": [0, 1], "learning_rate": [1e-3, 2e-3, 1e-3]})
    assert found == [{"seed": s, "learning_rate": r} for s in (0, 1) for r in (1e-3, 2e-3)]


def test_a_random_search_is_decided_by_its_seed():
    values = {
        "seed": [0, 1, 2],
        "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "epochs": {"low": 1, "high": 3},
    }
    first, second, other = (
        _varied(vary=values, search="random", trials=60, seed=seed, fixed={"device": "reference"}) for seed in (0, 0, 1)
    )
    assert first == second != other and len(first) == 60
    assert {draw["epochs"] for draw in first} == {1, 2, 3} and {draw["seed"] for draw in first} == {0, 1, 2}
    rates = sorted(draw["learning_rate"] for draw in first)
    assert rates[0] >= 1e-4 and rates[-1] <= 1e-2
    assert 0.3 < sum(rate < 1e-3 for rate in rates) / 60 < 0.7  # as many below the geometric middle as above


def test_numbers_keys_and_marks_of_yaml_are_those_of_version_1_2(tmp_path):
    text = """\ufefffixed: {data: airline, samples: 20, encoders: 1, device: reference}
vary: {learning_rate: [1e-3, 3E-4, .5, 1_000], seed: [0x1F, 0o17, 017, 2026-01-01, yes]}
"""
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    vary = read_spec(tmp_path / "a.yaml").vary
    assert vary["learning_rate"] == [1e-3, 3e-4, 0.5, "1_000"]
    assert vary["seed"] == [31, 15, 17, "2026-01-01", "yes"]
    with pytest.raises(SpecError, match="seed is '2026-01-01': it must be a valid integer"):
        _of_file(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("vary: {seed: [0]}\nfixed: {epochs: 1}\nvary: {seed: [1]}\n")
    with pytest.raises(BttlabError, match="line 3 has the key vary a second time"):
        read_spec(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text(
        "vary: {learning_rate: [1e-3, fast]}\nfixed: {momentum: 9e-1, optimizer: momentum}\n"
    )
    with pytest.raises(SpecError, match="trial learning_rate = 'fast': learning_rate is 'fast'"):
        _of_file(tmp_path / "a.yaml")


def test_a_trials_id_is_a_digest_of_all_that_decides_its_course(tmp_path):
    (one,) = _trials(vary={"learning_rate": [LEARNING_RATES["sgd"]]})
    (same,) = _trials(vary={"encoders": [2]}, fixed={"seed": 0})
    (other,) = _trials(vary={"encoders": [2]}, fixed={"seed": 1})
    assert one.id == same.id != other.id
    corpora = [tiny_runs.write_corpus(tmp_path / name, seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    ids = [_trials(vary={"data": [str(corpus)]})[0].id for corpus in corpora]
    assert ids[0] == ids[1] != ids[2]  # the place of a corpus is no matter, what is in it is


def test_values_that_a_sum_of_floats_rounds_are_one_trial(tmp_path):
    """0.1 + 0.2 is 0.30000000000000004. A draw of a range keeps all its digits, and a trial its id."""
    (one,) = _trials(vary={"learning_rate": [0.3, 0.1 + 0.2]})
    (same,) = _trials(vary={"learning_rate": [0.3]})
    (fixed,) = _trials(vary={"encoders": [2]}, fixed={"learning_rate": 0.1 + 0.2})
    assert one.id == same.id == fixed.id and one.configuration["learning_rate"] == 0.3
    assert len(_trials(vary={"learning_rate": [0.3, 0.3000000001]})) == 2
    draws = {"vary": {"learning_rate": {"low": 0.1, "high": 0.3}}, "search": "random", "trials": 4}
    assert any(trial.varied["learning_rate"] != round(trial.varied["learning_rate"], 15) for trial in _trials(**draws))


def test_a_size_finds_its_modes_as_on_the_command_line():
    trials = _trials(vary={"hidden_size": [256, 768]}, fixed={"heads": 4, "encoders": 1, "device": "reference"})
    found = [trial.settings.config.linear_out_modes for trial in trials]
    assert found == [ModelConfig(heads=4).with_hidden_size(256).linear_out_modes, ModelConfig.linear_out_modes]


def test_a_module_is_a_key_as_others_are(tmp_path):
    net = shutil.copy(NET, tmp_path / "net.py")
    corpus = tiny_runs.write_corpus(tmp_path / "corpus")
    text = f"""
        fixed: {{data: {corpus}, sequence_length: 6, device: reference}}
        vary: {{model: [net.py:Tagger, net.py:Both], seed: [0, 1]}}
        objective: dev.slot_f1
        maximize: true
        """
    (tmp_path / "nets.yaml").write_text(textwrap.dedent(text))
    maker = TrialMaker(read_spec(tmp_path / "nets.yaml"))
    tagger, _, both, _ = Search(maker.spec, maker).planned
    assert [trial.settings.config.module for trial in (tagger, both)] == ["net.py:Tagger", "net.py:Both"]
    assert tagger.settings.config.sequence_length == 6 and tagger.module[0] == net.read_bytes()
    net.write_text("class Tagger(\n")
    assert [trial.id for trial in Search(maker.spec, maker).planned][::2] == [tagger.id, both.id]  # it was read once
    with pytest.raises(SpecError, match="SyntaxError"):
        Search(maker.spec, TrialMaker(maker.spec))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_a_flat_configuration_means_its_settings(optimizer, tmp_path):
    settings = tiny_runs.settings(tmp_path, optimizer, seed=3, samples=7)
    assert settings_of(flat(settings)) == settings


def test_a_recipe_and_what_is_changed_of_it():
    plain = settings_of({"recipe": "atis", "data": "airline", "device": "emulated"})
    changed = settings_of(
        {"recipe": "atis", "data": "airline", "device": "emulated", "beta2": 0.9, "schedule.warm_up": 0.25, "epochs": 2}
    )
    assert (changed.optimizer.beta2, changed.schedule.warm_up, changed.epochs) == (0.9, 0.25, 2)
    assert changed.schedule.decay == plain.schedule.decay and changed.learning_rate == plain.learning_rate
    assert changed.augmentation == plain.augmentation


@pytest.mark.long
def test_a_model_that_the_card_does_not_hold_is_refused_at_once():
    fixed = {"data": "airline"}
    assert [trial.settings.device for trial in _trials(vary={"linear_rank": [12, 5]}, fixed=fixed)] == ["emulated"] * 2
    with pytest.raises(SpecError, match=r"trial linear_rank = 99: .*has rank 99.* choose ranks up to"):
        _trials(vary={"linear_rank": [12, 99]}, fixed=fixed)
    elsewhere = _trials(vary={"linear_rank": [12, 99]}, fixed=fixed | {"device": "reference"})
    assert [trial.settings.config.linear_rank for trial in elsewhere] == [12, 99]


def test_estimates_vary_flow_and_clock():
    vary = {"flow": ["bidirectional", "auto"], "clock_mhz": [100, 200], "encoders": [1]}
    found = _trials(kind="estimate", vary=vary)
    assert [(t.configuration["flow"], t.configuration["clock_mhz"]) for t in found] == [
        ("bidirectional", 100),
        ("bidirectional", 200),
        ("auto", 100),
        ("auto", 200),
    ]


@pytest.mark.parametrize(
    "values, message",
    [
        ({}, "vary"),
        ({"vary": {}}, "vary is empty"),
        ({"vary": {"seed": []}}, "give a list of values"),
        ({"vary": {"clock_mhz": [100]}}, "no key 'clock_mhz'"),
        ({"vary": {"seed": [0]}, "fixed": {"seed": 1}}, "under vary and under fixed"),
        ({"vary": {"seed": [0]}, "fxied": {}}, "do you mean fixed"),
        ({"vary": {"seed": [0]}, "search": "random"}, "trials is missing"),
        ({"vary": {"seed": [0]}, "trials": 3}, "trials is for search"),
        ({"vary": {"seed": {"low": 1, "high": 2}}}, "a grid takes a list"),
        ({"vary": {"seed": {"low": 2, "high": 1}}, "search": "random", "trials": 1}, "low must be below high"),
        ({"vary": {"learning_rate": {"low": 0, "high": 1, "log": True}}, "search": "random", "trials": 1}, "above 0"),
        ({"vary": {"seed": [0]}, "name": "a/b"}, "name is 'a/b'"),
        ({"vary": {"seed": [0]}, "objective": "loss"}, "say with maximize"),
        ({"vary": {"seed": [0]}, "objective": "dev.slotf1", "maximize": True}, "do you mean dev.slot_f1"),
        ({"vary": {"seed": [0]}, "objective": "loss", "maximize": False, "kind": "estimate"}, "that no estimate has"),
        ({"vary": {"learning_rate": ["1e-3"]}}, "learning_rate is '1e-3': it must be a valid number"),
        ({"vary": {"device": ["gpu"]}}, "device is 'gpu'"),
        ({"vary": {"intents": [3]}}, "intent labels"),
        ({"vary": {"model": ["net.toml"]}}, "give FILE.py:CLASS"),
        ({"vary": {"model": [f"{NET}:Net"]}, "fixed": {"encoders": 2}}, "encoders: a module has sizes of its own"),
        ({"vary": {"model": [f"{NET}:Language"]}}, "choose one of dev.perplexity, dev.mean_loss"),
        ({"vary": {"momentum": [0.5, 0.9]}}, "momentum has no effect with optimizer sgd"),
        ({"vary": {"seed": [0]}, "fixed": {"weight_decay": 0.1}}, "weight_decay has no effect with optimizer sgd"),
        ({"vary": {"seed": [0]}, "maximize": "yes"}, "maximize is 'yes': it must be true or false"),
        ({"kind": "estimate", "vary": {"clock_mhz": [20]}}, "a clock of 20 MHz"),
    ],
)
def test_a_mistake_is_one_sentence(values, message):
    with pytest.raises(SpecError) as raised:
        _trials(**values)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_the_name_is_the_files(tmp_path):
    (tmp_path / "ranks.yaml").write_text("vary: {linear_rank: [8]}")
    assert read_spec(tmp_path / "ranks.yaml").name == "ranks"
    with pytest.raises(BttlabError, match="cannot be read"):
        read_spec(tmp_path / "other.yaml")


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "mine").mkdir()
    text = "{vary: {recipe: [atis, mine.toml], data: [airline, mine, ./mine, ../mine]}, fixed: {overlay: trainer}}"
    (tmp_path / "sweep.yaml").write_text(text)
    vary, here = read_spec(tmp_path / "sweep.yaml").vary, tmp_path.resolve()
    assert vary["recipe"] == ["atis", str(here / "mine.toml")]
    assert vary["data"] == ["airline", *[str(here / "mine")] * 2, str(here.parent / "mine")]


def test_the_type_of_a_range_comes_from_its_key():
    whole = {"low": 0, "high": 1}
    rates = _varied(vary={"learning_rate": whole}, search="random", trials=6, fixed={"device": "reference"})
    assert len(rates) == 6 and all(0 < draw["learning_rate"] < 1 for draw in rates)
    values = {"epochs": {"low": 1.0, "high": 3.0}, "augmentation.word_dropout": whole, "momentum": whole}
    fixed = {"device": "reference", "optimizer": "momentum"}
    draws = _varied(vary=values, search="random", trials=6, fixed=fixed)
    assert {type(draw["epochs"]) for draw in draws} == {int}
    assert all(0 < draw[key] < 1 for draw in draws for key in ("augmentation.word_dropout", "momentum"))
    with pytest.raises(SpecError, match=r"epochs: low 0.5, high 3: epochs takes whole numbers"):
        _trials(vary={"epochs": {"low": 0.5, "high": 3}}, search="random", trials=2)


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -float("inf")])
def test_a_bound_that_is_no_number_is_named(bound):
    with pytest.raises(SpecError, match=rf"vary.learning_rate: low: it is {bound}: it must be a finite number"):
        _trials(vary={"learning_rate": {"low": bound, "high": 1}}, search="random", trials=2)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"objective": "test.slot_f1", "maximize": True}, "test.slot_f1 is not known after each epoch"),
        ({"kind": "estimate"}, "u50.joules_per_epoch is not known after each epoch"),
        ({}, "pruner has no effect on trials of one epoch"),
        ({"pruner": "mean"}, "pruner is 'mean'"),
    ],
)
def test_a_pruner_that_has_no_effect_is_refused(values, said):
    vary = {"clock_mhz": [100, 200]} if "kind" in values else {"seed": [0, 1]}
    with pytest.raises(SpecError, match=said):
        _trials(**{"vary": vary, "pruner": "median"} | values)
