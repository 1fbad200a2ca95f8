"""Methods that train in several processes: what one process finds, with less in each."""

from dataclasses import dataclass, replace
from threading import Event

import numpy as np
import pytest
import torch.distributed as dist

from bttlab.data import load_corpus
from bttlab_methods import Method, MethodError, Setting, Training, parse, run_methods
from tiny_runs import CONFIG, write_corpus

SAMPLES = 17  # batches of 4, and one of a single sample, of which the second rank has no share


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    corpus = load_corpus(write_corpus(tmp_path_factory.mktemp("data") / "tiny"))
    return Setting(corpus, replace(CONFIG, format="dense", encoders=2), samples=SAMPLES, batch=4)


def assert_as_one_process(setting, name: str, together: str = "dense") -> dict:
    """Train with ranks and alone; returns the result's memory and that of the run alone, under "alone"."""
    alone, several = Training(setting, parse(together)), Training(setting, parse(f"{together}+{name}"))
    losses: dict[Training, list] = {alone: [], several: []}
    alone.run(losses[alone].append)
    memory = several.methods[-1].train(several, losses[several].append, None)
    assert [len(batch) for batch in losses[several]] == [4, 4, 4, 4, 1]
    assert np.allclose(np.concatenate(losses[alone]), np.concatenate(losses[several]), rtol=1e-4)
    assert (several.count, several.steps) == (SAMPLES, 5) and several.seconds_spent > 0
    for one, other in zip(alone.model.parameters(), several.model.parameters(), strict=True):
        if one.ndim > 1:  # the gradient of the keys' biases is nothing but rounding, which AdamW makes large
            assert (one - other).abs().max() < 2e-4
    assert len(memory["ranks"]) == 2
    assert memory["peak"]["value"] == max(rank["peak"]["value"] for rank in memory["ranks"])
    return memory


def bytes_of(memory: dict, category: str) -> list[int]:
    return [rank["most"][category]["value"] for rank in memory["ranks"]]


def whole(setting) -> int:
    return 4 * setting.config.parameters_count


def test_data_parallel_ranks_learn_what_one_process_learns_from_the_whole_batch(setting):
    memory = assert_as_one_process(setting, "data-parallel", "tensor")
    size = 4 * sum(parameter.numel() for parameter in Training(setting, parse("tensor")).model.parameters())
    assert bytes_of(memory, "parameters") == bytes_of(memory, "gradients") == [size, size]


def test_zero_leaves_each_rank_half_of_parameters_gradients_and_state(setting):
    memory = assert_as_one_process(setting, "zero")
    for category, size in (("parameters", 1), ("gradients", 1), ("optimizer_state", 2)):
        parts = bytes_of(memory, category)
        assert sum(parts) == pytest.approx(size * whole(setting), rel=0.05)
        assert max(parts) < 0.55 * size * whole(setting)


def test_a_pipelines_ranks_hold_the_layers_between_them(setting):
    memory = assert_as_one_process(setting, "pipeline")
    parts = bytes_of(memory, "parameters")
    assert sum(parts) == whole(setting) and max(parts) < 0.65 * whole(setting)
    assert max(bytes_of(memory, "optimizer_state")) < 1.3 * whole(setting)


def test_tensor_parallel_ranks_hold_half_of_the_encoders_matrices(setting):
    memory = assert_as_one_process(setting, "tensor-parallel")
    matrices = 2 * 6 * 16 * 16 * 4  # 2 encoders, 6 layers each
    biases = 2 * 4 * 16 * 4  # of the layers that are split by columns
    for size in bytes_of(memory, "parameters"):
        assert size == whole(setting) - (matrices + biases) // 2


@dataclass(frozen=True)
class Broken(Method):
    """Raise an error in the second rank, for a test of what becomes of it."""

    name = "broken"
    family = "data"
    source = "none"
    changes = frozenset({"loss"})

    def before_update(self, training):
        if dist.get_rank() == 1 and training.count:
            raise ValueError("no such\nluck")


def test_an_error_in_a_rank_reaches_the_caller_in_one_line(setting):
    with pytest.raises(MethodError, match=r"^rank 1: ValueError: no such$"):
        run_methods(setting, [*parse("data-parallel"), Broken()])


def test_a_stop_ends_all_ranks_after_the_same_step(setting):
    stop = Event()
    training = Training(replace(setting, samples=10**6), parse("data-parallel"))
    memory = training.methods[0].train(training, lambda losses: stop.set(), stop)
    assert 4 <= training.count < 10**6 and len(memory["ranks"]) == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ("pipeline:processes=3", "processes is 3: it must be at most the number of encoders, 2; pass --encoders 3"),
        ("tensor-parallel:processes=3", "processes is 3: it must divide the 2 heads"),
        ("zero:processes=1", "processes is 1: it must be at least 2"),
        ("pipeline:micro_batches=0", "micro_batches is 0: it must be at least 1"),
        ("tensor+tensor-parallel", "tensor and tensor-parallel do not combine"),
        ("zero+data-parallel", "zero and data-parallel do not combine: both change the processes; leave one out"),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_line(setting, text, message):
    with pytest.raises(MethodError, match=message):
        Training(setting, parse(text))
