"""Methods that train a few parameters of a model that was trained first."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.data import load_corpus
from bttlab_methods import Batch, Setting, Training, parse, run_methods
from bttlab_methods.library.pretrained import pretrained
from tiny_runs import CONFIG

HEADS = {"intent_head.weight", "intent_head.bias", "slot_head.weight", "slot_head.bias"}


@pytest.fixture(scope="module")
def setting(corpus, tmp_path_factory):
    config = replace(CONFIG, format="dense")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Setting(load_corpus(corpus), config, samples=24, batch=4)


def named(name: str) -> str:
    return f"{name},pretraining=64" if ":" in name else f"{name}:pretraining=64"


def moved(setting, name: str) -> tuple[Training, set[str]]:
    """Train; returns the training and the parameters that are not what they were."""
    training = Training(setting, parse(named(name)))
    before = {key: value.detach().clone() for key, value in training.model.named_parameters()}
    training.run()
    return training, {
        key for key, value in training.model.named_parameters() if not torch.equal(value.detach(), before[key])
    }


def test_the_model_is_trained_once_and_read_again_to_the_bit(setting, capsys):
    training = Training(setting)
    first, cost = pretrained(setting, training.vocabulary, 40)
    again, cost_again = pretrained(replace(setting, seed=3), training.vocabulary, 40)
    assert capsys.readouterr().err == "bttlab: training a model on 40 samples of airline first, once\n"
    assert cost == cost_again and cost["pretraining_samples"] == 40 and cost["pretraining_seconds"] > 0
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert set(first) == {name for name, _ in training.model.named_parameters()} - HEADS
    other, _ = pretrained(setting, training.vocabulary, 44)
    assert not torch.equal(first["intent_pooler.weight"], other["intent_pooler.weight"])


def test_full_finetuning_starts_from_the_model_with_heads_of_its_own(setting):
    training = Training(setting, parse(named("full-finetuning")))
    fresh = Training(setting).model.state_dict()
    parameters, _ = pretrained(setting, training.vocabulary, 64)
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, fresh[name] if name in HEADS else parameters[name])
    result = run_methods(setting, parse(named("full-finetuning")), splits=())
    assert result.trained == result.parameters and result.facts["pretraining_samples"] == 64


def test_lora_moves_its_factors_and_the_heads_and_merges_to_the_same_model(setting):
    training, names = moved(setting, "lora:rank=2")
    assert {name for name in names if "lora_" not in name} == HEADS
    assert sum("lora_A" in name for name in names) == sum("lora_B" in name for name in names) == 8
    assert training.model.encoders[0].query.lora_A["default"].weight.shape[0] == 2
    tokens = torch.tensor(training.samples[:3].tokens[:, :6].astype(np.int64))
    before = training.model(tokens)
    weight = training.model.encoders[0].query.base_layer.weight.detach().clone()
    assert training.finish()["pretraining_samples"] == 64
    assert not torch.equal(training.model.encoders[0].query.base_layer.weight, weight)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(before, training.model(tokens), strict=True))


def test_loretta_changes_nothing_at_first_and_moves_cores_and_heads_alone(setting):
    tokens = torch.tensor([[2, 5, 6, 7]])
    full, adapted = (Training(setting, parse(named(name))) for name in ("full-finetuning", "loretta"))
    for one, other in zip(full.model(tokens), adapted.model(tokens), strict=True):
        torch.testing.assert_close(one, other)
    _, names = moved(setting, "loretta:rank=2")
    assert {name for name in names if ".update.cores." not in name} == HEADS
    assert len(names - HEADS) == 8 * 6  # six cores beside each of eight layers


def test_adapters_change_nothing_at_first_and_are_all_that_moves_with_norms_and_heads(setting):
    tokens = torch.tensor([[2, 5, 6, 7]])
    full, with_adapters = (
        Training(setting, parse(named(name))).model(tokens) for name in ("full-finetuning", "adapters")
    )
    assert all(map(torch.equal, full, with_adapters))
    _, names = moved(setting, "adapters")
    kinds = ("down", "up", "_norm")
    assert {name for name in names if not any(kind in name for kind in kinds)} == HEADS
    assert {kind for kind in kinds for name in names if kind in name} == set(kinds)


def test_prompts_are_all_that_moves_with_the_heads_and_are_dropped_again(setting):
    training, names = moved(setting, "prompt-tuning:length=3")
    assert names == HEADS | {"prompt"} and training.model.prompt.shape == (3, 16)
    intent, slots = training.model(torch.tensor([[2, 5, 6, 7], [2, 8, 9, 5]]))
    assert intent.shape == (2, 3) and slots.shape == (2, 3, 5)
    seen = []
    training.model.encoders[0].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    training.forward(Batch(training.samples[:2]))
    assert torch.equal(seen[0][0, :3], training.model.prompt)
    assert seen[0].shape[1] == training.samples.lengths[0] + 3
