"""The Vitis recipe, tried with a compiler that only writes down what it was told."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from bttlab.card import build
from bttlab.card.build import DEFINITIONS
from bttlab.card.manifest import overlays_folder, read_manifest
from bttlab.estimate.constants import read_data
from bttlab.estimate.facts import U50
from bttlab.util.places import ROOT

from build_library import COMPILER
from fake_xrt import as_hardware

HLS = ROOT / "hls_src"


@pytest.fixture
def platforms(tmp_path):
    folder = tmp_path / "platforms" / U50.platform
    folder.mkdir(parents=True)
    (folder / f"{U50.platform}.xpfm").touch()
    return folder.parent


def make(*arguments, **environment):
    command = ["make", "--no-print-directory", "--dry-run", "-C", str(HLS), f"PYTHON={sys.executable}", *arguments]
    environment = {"PATH": os.environ["PATH"], "PLATFORM_REPO_PATHS": "", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["TARGET=sw_emu"], "TARGET is 'sw_emu': choose hw or hw_emu"),
        (["VPP=true", "CLOCK_MHZ=300"], "CLOCK_MHZ is '300': vitis/operators.tcl and config.h are for 200 MHz or less"),
        (["VPP=true", "CLOCK_MHZ=fast"], "CLOCK_MHZ is 'fast': "),
        (["VPP=no-such-compiler"], "no Vitis compiler 'no-such-compiler': source settings64.sh"),
        (["VPP=true", "PLATFORM=xilinx_u51"], "no platform 'xilinx_u51' in"),
    ],
)
def test_what_is_missing_is_one_line(platforms, arguments, message):
    result = make(*arguments, PLATFORM_REPO_PATHS=str(platforms))
    assert result.returncode == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert ("platforms of Alveo cards there: " + U50.platform in result.stderr) == ("xilinx_u51" in message)


@pytest.mark.long
@pytest.mark.parametrize("target", ["hw", "hw_emu"])
def test_the_commands(platforms, target):
    result = make(f"TARGET={target}", "VPP=true", "CLOCK_MHZ=180", PLATFORM_REPO_PATHS=str(platforms))
    assert result.returncode == 0, result.stderr
    text = result.stdout.replace("\\\n", " ")
    compiled, linked = (re.search(rf"true {action} .*", text)[0] for action in ("--compile", "--link"))
    for command in (compiled, linked):
        assert f"--target {target}" in command and f"{U50.platform}.xpfm" in command
    assert compiled.endswith("/hls_src/processor/trainer.cpp")
    assert "--hls.clock 180000000:trainer" in compiled and "--kernel_frequency 180" in linked
    assert ("--install" in text) == (target == "hw")


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_connectivity_is_the_kernels(definition):
    text = (HLS / "vitis" / definition.source).with_suffix(".cfg").read_text()
    ports = dict(re.findall(r"^sp=([\w.]+):HBM\[(\d+)\]", text, re.MULTILINE))
    assert ports == {
        f"{kernel.instance}.{argument.name}": str(argument.bank)
        for kernel in definition.kernels
        for argument in kernel.arguments
        if argument.is_pointer
    }
    instances = re.findall(r"^nk=(\w+):1:(\w+)$", text, re.MULTILINE)
    assert instances == [(kernel.name, kernel.instance) for kernel in definition.kernels]


def test_an_overlay_for_a_card_is_listed_beside_the_emulated_one(tmp_path):
    emulated = (overlays_folder() / "trainer.xclbin").read_bytes()
    linked = tmp_path / "linked.xclbin"
    linked.write_bytes(as_hardware(emulated))
    overlays = tmp_path / "overlays"
    overlays.mkdir()
    (overlays / "manifest.json").write_bytes((overlays_folder() / "manifest.json").read_bytes())
    before = read_manifest(overlays)
    for _ in range(2):  # again replaces
        entry = build.install(DEFINITIONS["trainer"], linked, HLS, overlays, 200)
    assert (entry.kind, entry.file, entry.platform) == ("hw", "hw/trainer.xclbin", U50.platform)
    assert (overlays / entry.file).read_bytes() == linked.read_bytes()
    assert len(read_manifest(overlays)) == len(before) + 1 and entry in read_manifest(overlays)


def test_operators_are_those_that_the_schedule_counts_with():
    text = (HLS / "vitis" / "operators.tcl").read_text()
    told = {name: int(cycles) for name, cycles in re.findall(r"^config_op (\w+) .*-latency (\d+)$", text, re.MULTILINE)}
    cycles = {name: entry["value"] for name, entry in read_data("latencies")["cycles"].items()}
    assert told == {name: cycles["fadd" if name == "fsub" else name] for name in told}
    assert {"fadd", "fmul", "fdiv", "fsqrt"} <= told.keys()
    assert "config_op fmul -impl fulldsp" in text  # 2 DSPs: the low end of operators.json, as the schedule takes it


FAKE_COMPILER = """#!/bin/sh
# Notes what it is told, and makes what it is asked for.
echo "$*" | grep -o -e '--compile' -e '--link' >> "$FAKE_VPP_LOG"
while [ "$1" != --output ]; do shift; done
cp "$FAKE_LINKED" "$2"
"""


@pytest.mark.long
def test_every_input_of_the_build_is_a_prerequisite(platforms, tmp_path):
    """A fake v++ builds again when, and only when, the clock, a source or a file of vitis/ has changed."""
    source, overlays, log = tmp_path / "hls_src", tmp_path / "overlays", tmp_path / "log"
    shutil.copytree(HLS, source, ignore=shutil.ignore_patterns("build"))
    overlays.mkdir()
    compiler, linked = tmp_path / "v++", tmp_path / "linked.xclbin"
    compiler.write_text(FAKE_COMPILER)
    compiler.chmod(0o755)
    linked.write_bytes(as_hardware((overlays_folder() / "trainer.xclbin").read_bytes()))

    def built(clock: int = 200) -> list[str]:
        log.write_text("")
        command = ["make", "-C", str(source), f"ROOT={ROOT}", f"HLS_SRC={source}", f"PYTHON={sys.executable}"]
        environment = {"PLATFORM_REPO_PATHS": str(platforms), "BTTLAB_OVERLAYS": str(overlays)}
        environment |= {"FAKE_VPP_LOG": str(log), "FAKE_LINKED": str(linked), "PATH": os.environ["PATH"]}
        command += [f"VPP={compiler}", f"CLOCK_MHZ={clock}"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return log.read_text().split()

    whole = ["--compile", "--link"]
    assert built() == whole and built() == []
    (entry,) = read_manifest(overlays)
    assert entry.clock_mhz == 200 and build.stale_hardware(source, overlays) == {}
    for path in ("vitis/processor/trainer.cfg", "processor/engine.h"):
        (source / path).write_text((source / path).read_text() + "\n")
        assert "older than its sources" in build.stale_hardware(source, overlays)["trainer"]
        assert built() == whole and build.stale_hardware(source, overlays) == {}
    assert built(150) == whole
    assert build.stale_hardware(source, overlays) == {"trainer": "runs at 200 MHz, it was built for 150"}


@pytest.mark.long
def test_the_branch_for_vitis_compiles():
    """With a stub of AMD's vectors: what only GCC's and clang's have is an error."""
    flags = ("-std=c++17", "-fsyntax-only", "-D__VITIS_HLS__", "-D__SYNTHESIS__", "-Wno-unknown-pragmas")
    stub = HLS.parent / "tests" / "helpers" / "vitis_stub"
    command = [COMPILER, *flags, "-Wall", "-Werror", "-Wno-unused-label", "-Wno-unused-function", f"-I{stub}"]
    done = subprocess.run([*command, HLS / "processor" / "trainer.cpp"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
