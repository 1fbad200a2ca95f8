"""The kernel's port under sanitizers: programs that no compiler writes."""

import subprocess

import pytest

from bttlab.card.build import HLS_SOURCE
from bttlab.card.image import IMAGES
from bttlab.compiler.program import compile

from build_library import library
from training_processor import SMALL

pytestmark = pytest.mark.long
FLAGS = ("-std=c++17", "-g1", "-O0", "-ffp-contract=off", "-Wno-psabi", "-DBTTLAB_FAST", "-pthread")
SANITIZE = ("-fsanitize=address,bounds,shift", "-fno-sanitize-recover=all")


def test_a_program_with_extreme_fields_is_refused_or_stays_within_its_memories(tmp_path):
    image = tmp_path / "image"
    image.write_bytes(compile(SMALL).image.tobytes())
    port = library(HLS_SOURCE / "testbench" / "port.cpp", *FLAGS, *SANITIZE, *IMAGES[-1].flags)
    done = subprocess.run([port, "200", "1", image], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stderr or done.stdout)[:2000]
    assert "programs taken" in done.stdout
