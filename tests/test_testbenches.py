"""The C++ testbenches of hls_src: each layer against a double-precision reference."""

import subprocess

import pytest

from bttlab.model import ModelConfig
from bttlab.u50.build import model_flags
from bttlab.u50.native import IMAGES, cpu_features

from conftest import ROOT

HLS_SOURCE = ROOT / "hls_src"
# Sizes that fill no word and divide no tile, so that every edge is walked.
ODD = ModelConfig(
    encoders=3,  # so that the first one's cores are merged again
    sequence_length=20,
    hidden_size=128,
    heads=4,
    vocabulary_size=60,
    intents=7,
    slots=19,
    linear_out_modes=(4, 4, 8),
    linear_in_modes=(8, 4, 4),
    linear_rank=5,
    embedding_row_modes=(3, 4, 5),
    embedding_column_modes=(4, 4, 8),
    embedding_rank=6,
)
WIDE_RANK = ModelConfig(
    encoders=1,
    sequence_length=18,
    hidden_size=32,
    heads=2,
    vocabulary_size=8,
    intents=17,
    slots=16,
    linear_out_modes=(4, 4, 2),
    linear_in_modes=(2, 4, 4),
    linear_rank=17,
    embedding_row_modes=(2, 2, 2),
    embedding_column_modes=(4, 4, 2),
    embedding_rank=17,
)
FLAGS = (
    "-std=c++17 -O2 -ffp-contract=off -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-label -Wno-unused-function"
)


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
@pytest.mark.parametrize("model", [ODD, WIDE_RANK], ids=["odd sizes", "ranks over a word"])
@pytest.mark.parametrize("testbench", ["test_functions", "test_engine", "test_layers"])
def test_testbench(testbench, model, image, tmp_path):
    # A host that cannot run an image tests what it can run once more.
    run_testbench(testbench, model, image.flags if image.features <= cpu_features() else IMAGES[-1].flags, tmp_path)


def run_testbench(testbench, model, flags, tmp_path):
    program = tmp_path / testbench
    source = HLS_SOURCE / "testbench" / f"{testbench}.cpp"
    includes = [f"-I{HLS_SOURCE}", f"-I{HLS_SOURCE / 'emulation'}"]
    subprocess.run(["g++", *FLAGS.split(), *flags, *model_flags(model), *includes, source, "-o", program], check=True)
    result = subprocess.run([program], capture_output=True, text=True, timeout=300)
    print(result.stdout)
    assert result.returncode == 0, result.stdout
    passed, failed = (int(part.split()[0]) for part in result.stdout.splitlines()[-1].split(","))
    assert passed > 5 and failed == 0
