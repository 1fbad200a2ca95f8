"""Encoders that share their parameters."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.data import load_corpus
from bttlab_methods import Batch, MethodError, Setting, Training, export, parse, run_methods
from bttlab_methods.run import measure_memory
from tiny_runs import CONFIG, write_corpus

TENSOR = "tensor:rank=3,embedding_rank=3"


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    corpus = load_corpus(write_corpus(tmp_path_factory.mktemp("data") / "tiny"))
    return Setting(corpus, replace(CONFIG, format="dense", encoders=2), samples=60, batch=4)


def most(training, category: str) -> int:
    return measure_memory(training)["most"][category]["value"]


@pytest.mark.parametrize("model", ["", TENSOR + "+"])
def test_shared_encoders_are_one_whose_gradient_is_the_sum_of_all_uses(setting, model):
    shared = Training(setting, parse(model + "shared-encoders"))
    apart = Training(setting, parse(model.rstrip("+") or "dense"))
    first, second = apart.model.encoders
    second.load_state_dict(first.state_dict())
    batch = Batch(apart.samples[:4])
    for training in (shared, apart):
        training.backward(training.forward(batch)[0])
    ones, twos, sums = (encoder.parameters() for encoder in (first, second, shared.model.encoders[1]))
    for one, two, both in zip(ones, twos, sums, strict=True):
        torch.testing.assert_close(both.grad, one.grad + two.grad, rtol=1e-4, atol=1e-6)
    size = sum(parameter.numel() for parameter in first.parameters())
    assert sum(map(torch.numel, shared.trained)) == sum(map(torch.numel, apart.trained)) - size


def test_shared_encoders_take_the_memory_of_one_and_export_as_all(setting):
    shared, apart = (Training(setting, parse(text)) for text in ("shared-encoders", "dense"))
    size = 4 * sum(parameter.numel() for parameter in apart.model.encoders[0].parameters())
    for training in (shared, apart):
        training.step(Batch(training.samples[:4]))
    for category, times in (("parameters", 1), ("gradients", 1), ("optimizer_state", 2)):
        assert most(apart, category) - most(shared, category) == pytest.approx(times * size, abs=200)  # and step counts
    config, parameters = export(shared)
    assert config.encoders == 2 and set(parameters) == set(config.parameter_shapes())
    name = "encoders.{}.first.weight"
    assert np.array_equal(parameters[name.format(0)], parameters[name.format(1)])
    with pytest.raises(MethodError, match="shared-encoders and stacking do not combine"):
        parse("shared-encoders+stacking")
    result = run_methods(setting, parse(TENSOR + "+shared-encoders+rematerialisation"), splits=())
    assert result.facts == {"uses_of_the_encoder": 2}
