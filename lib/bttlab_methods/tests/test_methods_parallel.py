"""Parallelism on two processes: the scores of one process, its parts of the memory, and what each sends."""

import warnings
from dataclasses import asdict, dataclass

import pytest
import torch

from bttlab.data import load_corpus
from bttlab.model import ModelConfig
from bttlab_methods import MethodError, Setting, parse, run, run_methods
from bttlab_methods.processes import in_processes

pytestmark = pytest.mark.long

MODES = (4, 4, 4)
SMALL = ModelConfig(
    encoders=2, format="dense", hidden_size=64, heads=4,
    linear_out_modes=MODES, linear_in_modes=MODES, embedding_column_modes=MODES,
)  # fmt: skip
STEPS = 6
BYTES = 4 * SMALL.parameters_count
ENCODER = 4 * (6 * 64 * 64 + 4 * 64)  # of an encoder what tensor parallelism splits: matrices, biases of four of them
# Parts of the parameters that the two processes hold, and bytes that they send in a step for those of the model.
HELD = {
    "data-parallel": (1, 1),
    "zero": (0.5, 0.5),
    "tensor-parallel": (1 - ENCODER / BYTES, 1 - ENCODER / BYTES),
    "pipeline-parallel": (0.6806, 0.3194),
}
SENT = {"data-parallel": 1, "zero": 1.2}  # ZeRO: gathered forward and backward but for the root, gradients scattered


PEAK = {"data-parallel": 1.25, "zero": 1, "tensor-parallel": 0.92, "pipeline-parallel": 0.8}  # at most, of one process


@dataclass
class Results:
    by_name: dict[str, dict]
    warned: list[str]


def train_each(setting: Setting, names: list[str]) -> Results:
    with warnings.catch_warnings(record=True) as caught:
        by_name = {name: asdict(run_methods(setting, parse(name), splits=("dev",))) for name in names}
    return Results(by_name, [str(one.message) for one in caught])


@pytest.fixture(scope="module")
def alone(short_airline):
    torch.set_num_threads(1)
    setting = Setting(load_corpus(short_airline), SMALL, samples=4 * STEPS, batch=4)
    return setting, run_methods(setting, parse("dense"), splits=("dev",))


@pytest.fixture(scope="module")
def parts(alone):
    """What each of two processes finds, for all methods: to start processes takes longer than to train in them."""
    results = in_processes(2, train_each, (alone[0], list(HELD)), None)
    assert [part["warned"] for part in results] == [[], []]  # users would read them for each process
    return [part["by_name"] for part in results]


@pytest.mark.parametrize("name", HELD)
def test_two_processes_train_as_one(alone, parts, name, monkeypatch):
    setting, single = alone
    monkeypatch.setattr(run, "in_processes", lambda *_: [part[name] for part in parts])
    result = run_methods(setting, parse(name), splits=("dev",))
    assert result.losses == pytest.approx(single.losses, rel=1e-5)
    assert result.scores["dev"] == pytest.approx(single.scores["dev"], abs=0.002)
    assert result.parameters == single.parameters and result.samples == single.samples
    peaks = [part[name]["memory"]["peak"]["value"] for part in parts]
    assert max(peaks) < PEAK[name] * single.memory["peak"]["value"], (peaks, single.memory)
    for part, held in zip(result.facts["processes"], HELD[name], strict=True):
        assert part["parameter_bytes"] == pytest.approx(held * BYTES, rel=0.02)
        assert part["optimizer_bytes"] == pytest.approx(2 * part["parameter_bytes"], rel=0.01)
        assert part["sent_bytes_per_step"] > 0
        if name in SENT:
            assert part["sent_bytes_per_step"] == pytest.approx(SENT[name] * BYTES, rel=0.02)


def test_what_cannot_be_shared_is_one_line(alone):
    setting, _ = alone
    with pytest.raises(MethodError, match="do not combine"):
        parse("zero+data-parallel")
    with pytest.raises(MethodError, match="tensor-parallel is for the dense model"):
        run_methods(setting, parse("tensor:rank=3,embedding_rank=3+tensor-parallel"), splits=())
