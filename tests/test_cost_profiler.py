"""The profiler of fine-tuning runs: the transformer, where its time goes, its largest batch, the file of profiles."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.cost import profiles as profiles_module
from bttlab.cost.breakdown import LAYERS, expert_load, time_breakdown
from bttlab.cost.configuration import CostError, FineTuning
from bttlab.cost.memory import largest_batch, measure_largest_batch, parse_bytes
from bttlab.cost.profiles import Profile, measure_profiles, read_profiles
from bttlab.cost.training import Run, token_stream
from bttlab.cost.transformer import Experts, Router
from bttlab.data import load_corpus

SMALL = FineTuning(2, 16, 2, 4, 2, 32, sequence_length=8, vocabulary=50)
BOTH = pytest.mark.parametrize("architecture", ["bttlab", "mixtral"])


@BOTH
@pytest.mark.parametrize("method", ["full", "lora"])
def test_counts_are_those_of_the_built_model(architecture, method):
    config = replace(SMALL, architecture=architecture, method=method, lora_rank=3)
    parameters = list(Run(config).model.parameters())
    assert sum(p.numel() for p in parameters) == config.parameters + config.adapters
    assert sum(p.numel() for p in parameters if p.requires_grad) == config.trainable


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_experts_are_a_weighted_sum_of_the_chosen(top_k):
    config = replace(SMALL, top_k=top_k)
    torch.manual_seed(0)
    router, experts, x = Router(config), Experts(config), torch.randn(7, 16)
    weights, chosen = router(x)
    every = torch.stack([e.w2(torch.nn.functional.silu(e.w1(x)) * e.w3(x)) for e in experts.experts], dim=1)
    scores = (x @ router.gate.weight.T).softmax(-1)
    best = scores >= scores.sort(descending=True).values[:, top_k - 1 : top_k]
    wanted = torch.einsum("te,teh->th", scores * best / (scores * best).sum(1, keepdim=True), every)
    torch.testing.assert_close(experts(x, weights, chosen), wanted)


def test_later_tokens_do_not_change_earlier_logits():
    run = Run(SMALL)
    tokens = torch.randint(50, (1, 8))
    changed = tokens.clone()
    changed[0, 5] += 1
    before, after = run.model(tokens), run.model(changed % 50)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5], after[:, 5])


def test_adapters_change_nothing_at_first_and_alone_are_trained():
    run = Run(replace(SMALL, method="lora"))
    full = Run(SMALL)
    names = {name.replace(".linear.", "."): p for name, p in run.model.named_parameters()}
    full.model.load_state_dict({name: p for name, p in names.items() if not name.endswith((".a", ".b"))})
    tokens = run.batch(3)
    assert run.forward(tokens).item() == pytest.approx(full.forward(tokens).item(), rel=1e-5)
    before = {name: p.clone() for name, p in names.items()}
    run.step(tokens)
    run.step(tokens)
    assert {name for name, p in names.items() if torch.equal(p, before[name])} == {
        name for name in names if not name.endswith((".a", ".b"))
    }


def test_training_on_a_corpus_lowers_the_loss_and_loads_the_experts():
    stream = token_stream(load_corpus("airline"), 200)
    assert stream.min() >= 1 and stream.max() < 200
    load, losses = expert_load(Run(replace(SMALL, vocabulary=200), stream=stream), batch=8, steps=40, parts=4)
    assert load.shape == (4, 2, 4)
    np.testing.assert_allclose(load.sum(-1), 1)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3


@BOTH
def test_breakdown_leaves_no_stage_or_layer_out(architecture):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a hook that cannot see where a layer's backward pass ends
        found = time_breakdown(Run(replace(SMALL, architecture=architecture)), batch=2, steps=3)
    assert list(found) == ["forward", "backward", "optimizer"]
    for stage in ("forward", "backward"):
        assert set(found[stage]) == set(LAYERS)
        assert all(found[stage][layer] > 0 for layer in LAYERS)
    assert found["optimizer"]["all"] > 0


def test_bisection_finds_every_threshold():
    for threshold in range(40):
        asked = []
        assert largest_batch(lambda b, n=threshold, a=asked: a.append(b) or b <= n, most=32) == min(threshold, 32)
        assert len(asked) <= 12 and max(asked) <= 32


def test_largest_batch_is_bound_by_real_memory():
    config = FineTuning(2, 32, 2, 2, 1, 64, sequence_length=64, vocabulary=500)
    saved = {}  # bytes by storage: several layers keep one and the same input

    def keep(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    run = Run(config)
    tokens = run.batch(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = run.forward(tokens)
    kept = sum(saved.values())
    assert loss.isfinite()  # and what it keeps is alive up to here
    budgets = [parse_bytes(text) for text in ("256KiB", "24MiB", "48MiB")]
    none, few, more = (measure_largest_batch(config, "cpu", budget) for budget in budgets)
    assert none == 0 < few < more
    # A sequence takes what autograd keeps of it, and gradients that come and go; batches are whole, hence the room.
    # What kernels take for themselves, 8 MiB on some processors, does not grow with the batch.
    assert 0.8 * kept < (budgets[2] - budgets[1]) / (more - few) < 2 * kept


@pytest.mark.parametrize(("text", "value"), [("2GiB", 2**31), ("1.5 MB", 1_500_000), ("64KiB", 65536)])
def test_sizes(text, value):
    assert parse_bytes(text) == value


def fake_profile(config, device="cpu", budget=0):
    return Profile(config, 3, [1, 2], [0.5, 0.75], [1.0, 1.5], {"forward": {"norm": 0.1}}, 2)


def test_profiles_are_measured_once_and_kept(tmp_path, monkeypatch):
    path = tmp_path / "profiles.json"
    monkeypatch.setattr(profiles_module, "measure_profile", fake_profile)
    monkeypatch.setattr(profiles_module, "measure_matmul", lambda device: 1e9)
    asked = []
    configs = [SMALL, replace(SMALL, top_k=1)]
    measure_profiles(configs[:1], path, "cpu", 100, "2026-01-01", lambda number, config: asked.append(config))
    found = measure_profiles(configs, path, "cpu", 100, "2026-01-02", lambda number, config: asked.append(config))
    assert asked == configs and read_profiles(path) == found
    assert found.profiles[0].tokens_per_second.tolist() == [16, 2 * 8 / 0.75]
    with pytest.raises(CostError, match=r"100 bytes, this is .* within 200"):
        measure_profiles(configs, path, "cpu", 200, "2026-01-02")


def test_one_profile_is_measured(tmp_path):
    profile = measure_profiles([SMALL], tmp_path / "p.json", "cpu", 2**21, "2026-01-01").profiles[0]
    assert profile.batches[0] == 1 and profile.batches[-1] <= profile.largest_batch
    assert all(0 < seconds < 10 for seconds in profile.seconds) and len(profile.seconds) == len(profile.batches)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"top_k": 5}, "top_k is 5: a token can go to at most the 4 experts"),
        ({"layers": 0}, "layers is 0"),
        ({"hidden": 15}, "hidden is 15: it must be an even multiple of the 2 heads"),
        ({"method": "dora"}, "method 'dora': choose full or lora or qlora"),
        ({"architecture": "gpt"}, "architecture 'gpt'"),
    ],
)
def test_configurations_that_are_none(change, rule):
    with pytest.raises(CostError, match=rule):
        replace(SMALL, **change)


def test_other_bad_input(tmp_path):
    for text in ("2", "0GB", "two GB"):
        with pytest.raises(CostError, match="give a size with its unit"):
            parse_bytes(text)
    with pytest.raises(CostError, match="the corpus has 8 tokens, a sequence 8"):
        Run(SMALL, stream=np.zeros(8, int))
    for change in ({"method": "qlora"}, {"precision": "bf16"}, {"mixer": "mamba"}, {"checkpointing": True}):
        with pytest.raises(CostError, match="it can be estimated, not measured"):
            Run(replace(SMALL, **change))
    with pytest.raises(CostError, match="no profiles in"):
        read_profiles(tmp_path / "none.json")
    for text in ("[]", '{"version": 9}', '{"version": 1}', "x"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(CostError, match="is no file of profiles"):
            read_profiles(tmp_path / "bad.json")
