"""The methods lab: finding and combining methods, training with them, measuring, keeping results."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from bttlab.baseline.record import RecordError
from bttlab.data import load_corpus
from bttlab.model import batch_losses
from bttlab_methods import FAMILIES, Batch, Method, MethodError, Setting, Training, methods, parse, run_methods
from bttlab_methods.record import Results
from bttlab_methods.training import LEARNING_RATE
from tiny_runs import CONFIG

DENSE = replace(CONFIG, format="dense")


@pytest.fixture(scope="module")
def setting(corpus):
    return Setting(load_corpus(corpus), DENSE, samples=30, batch=4)


@pytest.mark.parametrize("name", methods())
def test_every_method_says_what_it_is(name):
    kind = methods()[name]
    assert kind.family in FAMILIES and kind.source and kind.changes
    assert 20 < len(kind.summary()) <= 120 and kind.summary().endswith(".")
    assert parse(name)[0] == kind()


def test_names_come_with_parameters_and_join():
    tensor, lion = parse("tensor:rank=4,rate_factor=2+lion")
    assert (tensor.rank, tensor.rate_factor, lion.name) == (4, 2.0, "lion")
    assert (tensor.full_name(), lion.full_name()) == ("tensor:rank=4,rate_factor=2.0", "lion")
    assert parse("dense") == ()


@pytest.mark.parametrize(
    "text, message",
    [
        ("tensor:rank=x", "method tensor: rank is 'x': it must be a whole number, such as 12"),
        ("rank-pruning:target=1", "target is 1.0: it must be in (0, 1)"),
        ("lora:pretraining=0", "lora: pretraining is 0: it must be in [1, inf)"),
        ("subspace:weights=false,activations=false", "weights and activations are both false"),
        ("tensor+subspace", "tensor and subspace do not combine: both change the linear layers"),
        ("shared-encoders+stacking", "shared-encoders and stacking do not combine"),
    ],
)
def test_a_value_or_combination_that_is_none_is_refused(text, message):
    with pytest.raises(MethodError) as error:
        parse(text)
    assert message in str(error.value)


@dataclass(frozen=True)
class Double(Method):
    """Count each loss twice, by the batch's weights, for a test of what methods can do."""

    name = "double"
    family = "memory"
    source = "none"
    changes = frozenset({"optimizer"})

    def change_batch(self, training, batch):
        return replace(batch, weights=np.full(len(batch.samples), 2, np.float32))


@dataclass(frozen=True)
class Penalty(Double):
    """Add the mean square of the parameters to the loss."""

    name = "penalty"
    changes = frozenset({"loss"})
    excludes = frozenset({"double"})


def test_methods_that_need_the_same_part_or_exclude_each_other_do_not_combine(setting):
    with pytest.raises(MethodError, match="lion and double do not combine: both change the optimizer; leave one out"):
        Training(setting, [*parse("lion"), Double()])
    with pytest.raises(MethodError, match=r"double and penalty do not combine: penalty cannot do with what double"):
        Training(setting, [Double(), Penalty()])


def test_weights_of_a_batch_count_in_the_loss(setting):
    plain, doubled = Training(setting), Training(setting, [Double()])
    batch = Batch(plain.samples[np.flatnonzero(plain.samples.lengths == plain.samples.lengths[0])[:3]])
    value, losses = doubled.forward(batch)
    expected = batch_losses(plain.model, batch.samples)
    assert np.allclose(losses, expected.detach().numpy())
    assert value.item() == pytest.approx(2 * expected.mean().item(), rel=1e-6)


def test_a_run_takes_the_budget_and_learns_and_repeats_to_the_bit(setting):
    setting = replace(setting, samples=150)
    seen = []
    first, second = (run_methods(setting, parse("tensor:rank=3,embedding_rank=3"), seen.append) for _ in range(2))
    assert first.samples == 150 and sum(map(len, seen)) == 300
    assert np.mean(first.losses[-5:]) < np.mean(first.losses[:5])
    assert (first.losses, first.scores) == (second.losses, second.scores)
    assert first.methods == "tensor:rank=3,embedding_rank=3" and first.trained == first.parameters


def test_a_learning_rate_that_is_too_high_is_said(setting):
    with pytest.raises(MethodError, match=r"momentum:learning_rate=1e\+30: the loss after \d+ samples is not finite"):
        run_methods(setting, parse("momentum:learning_rate=1e30"))


def test_results_are_kept_and_found_again(tmp_path, setting):
    path = tmp_path / "results.json"
    result = run_methods(setting, parse("dense"))
    Results.read(path).add(result)
    path.write_text(path.read_text(), encoding="utf-8-sig")  # an editor of Windows adds a byte order mark
    one, other = Results.read(path), Results.read(path)  # two processes
    one.add(replace(result, methods="one"))
    other.add(replace(result, methods="other"))
    again = Results.read(path)
    assert [each.methods for each in again.results] == ["dense", "one", "other"]
    assert again.find("dense", setting, "test") == result
    assert again.find("lion", setting, "dev") is None and again.find("dense", replace(setting, seed=1), "dev") is None
    for other in ({"rate_factor": 2.0}, {"warmup": 0.0}):
        assert again.find("dense", replace(setting, **other), "test") is None
    again.add(replace(result, methods="one", scores={"dev": result.scores["dev"]}))
    kept = Results.read(path)
    assert [each.methods for each in kept.results] == ["dense", "other", "one"], "of a run the last result stays"
    assert kept.find("one", setting, "dev") and kept.find("one", setting, "test") is None
    for text in ('[{"methods": 3}]', ""):
        path.write_text(text)
        with pytest.raises(RecordError, match=r"results.json is no record of methods"):
            Results.read(path)


def test_tensor_compression_trains_cores_in_place_of_matrices_at_a_higher_rate(setting):
    training = Training(setting, parse("tensor:rank=3,embedding_rank=2,rate_factor=5"))
    assert training.setting.config == replace(CONFIG, linear_rank=3, embedding_rank=2)
    assert {name: tuple(p.shape) for name, p in training.model.named_parameters()} == (
        training.setting.config.parameter_shapes()
    )
    assert sum(parameter.numel() for parameter in training.trained) < 0.6 * DENSE.parameters_count
    training.count = 3  # a tenth of the budget: the rate has risen
    training.set_rate()
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(5 * LEARNING_RATE)
