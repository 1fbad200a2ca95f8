"""The model of the cycles against what the emulated card counts."""

import numpy as np
import pytest

from bttlab.data import Samples, load_corpus
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.u50 import EmulatedU50, OverlayError, load_overlay
from bttlab.u50.cycles import epoch_cycles, sample_cycles, useful_macs
from bttlab.u50.hardware import HardwareConfig, read_constants


def samples_of(length: int, count: int = 1) -> Samples:
    tokens = np.zeros((count, 32), np.int32)
    tokens[:, :length] = np.arange(2, length + 2)
    zeros = np.zeros((count, 32), np.int32)
    return Samples(tokens, np.full(count, length, np.int32), np.zeros(count, np.int32), zeros)


@pytest.fixture(scope="module", params=[2, 4, 6])
def trainer(request):
    trainer = load_overlay(f"train_enc{request.param}", EmulatedU50()).train_transformer_1
    trainer.load_parameters(initial_parameters(trainer.config, 0))
    trainer.profile()
    return trainer


@pytest.mark.parametrize("length", [2, 3, 5, 6, 8, 12, 13, 16, 17, 24, 25, 31, 32])
def test_the_model_agrees_with_what_the_emulated_card_counts(trainer, length):
    trainer.train(samples_of(length), Optimizer("sgd"), 1e-4)
    counted, predicted = trainer.profile(), sample_cycles(trainer.config, HardwareConfig(), length)
    assert counted.keys() == predicted.keys()
    for key in counted:
        assert predicted[key] == pytest.approx(counted[key], rel=0.01), key


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_the_model_knows_the_optimizers(trainer, optimizer):
    trainer.load_parameters(initial_parameters(trainer.config, 0))
    trainer.profile()
    trainer.train(samples_of(9), Optimizer(optimizer), 1e-4)
    assert trainer.profile() == sample_cycles(trainer.config, HardwareConfig(), 9, optimizer)
    trainer.load_parameters(initial_parameters(trainer.config, 0))
    trainer.profile()


def test_a_profile_is_of_the_calls_since_the_last(trainer):
    trainer.train(samples_of(7, count=3), Optimizer("sgd"), 1e-4)
    assert trainer.profile() == epoch_cycles(trainer.config, HardwareConfig(), [7, 7, 7])
    assert trainer.profile() == {}
    trainer.store_parameters()
    assert trainer.profile().keys() == {("IO", "transfer")}


def test_constants_stand_once(tmp_path):
    header = tmp_path / "config.h"
    header.write_text("constexpr int A = 3, B = 2 * (A + 1);\nconstexpr int C = B / 3;\n")
    assert read_constants(header) == {"A": 3, "B": 8, "C": 2}
    header.write_text("constexpr int A = other(3);\n")
    with pytest.raises(OverlayError, match="no constant that the model of the hardware can read"):
        read_constants(header)


def test_a_hardware_that_cannot_be():
    for wrong, message in (
        ({"lanes": 0}, "lanes of the hardware is 0"),
        ({"engines": 3}, "engines of the hardware is 3: the source is written for 2"),
        ({"function_lanes": 3}, "function_lanes of the hardware is 3: it must divide the 16 lanes"),
        ({"merged_layers": 11}, "merged_layers of the hardware is 11: at least 12, those of two encoders"),
        ({"engine_rows": 17}, "engine_rows of the hardware is 17: at most 16"),
    ):
        with pytest.raises(OverlayError, match=message):
            HardwareConfig(**wrong)
    with pytest.raises(OverlayError, match="a sample of 33 tokens"):
        sample_cycles(ModelConfig(), HardwareConfig(), 33)
    assert HardwareConfig(clock_mhz=100).clock_mhz == 100 and ModelConfig().hidden_size % HardwareConfig().lanes == 0


@pytest.mark.parametrize(("encoders", "limit"), [(2, 5.0), (4, 9.0), (6, 13.0)])
def test_an_epoch_of_atis_is_as_fast_as_asked(atis, encoders, limit):
    lengths = [min(32, len(words) + 1) for words in load_corpus(atis).train.words]
    model, hardware = ModelConfig(encoders=encoders), HardwareConfig()
    cycles = sum(epoch_cycles(model, hardware, lengths).values())
    assert hardware.clock_mhz <= 200 and cycles / hardware.clock_mhz / 1e6 <= limit
    bound = sum(useful_macs(model, length) for length in lengths) / hardware.multiply_accumulates
    assert bound < cycles
