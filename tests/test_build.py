"""Building overlays: from source to a container that loads anywhere, the same every time."""

import contextlib
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pynq
import pytest

from bttlab.card import EmulatedU50, build, load_overlay, manifest
from bttlab.card.build import OverlayDefinition
from bttlab.card.image import IMAGES
from bttlab.card.manifest import overlays_folder, read_manifest
from bttlab.card.xclbin import read_xclbin
from bttlab.estimate.facts import ROOT
from bttlab.util import locks
from bttlab.util.errors import BttlabError

from emulated_kernels import SOURCE, VADD, call

TINY = OverlayDefinition("tiny", "tiny.cpp", (VADD,))


@pytest.fixture
def hls(tmp_path):
    """A folder of HLS sources: the small kernels, with headers of their own."""
    folder = tmp_path / "hls_src"
    folder.mkdir()
    (folder / "tiny.cpp").write_text('#include "parts/scale.h"\n#include "stand_in.h"\n#include <math.h>\n' + SOURCE)
    (folder / "parts").mkdir()
    (folder / "parts" / "scale.h").write_text("#pragma once\n")
    (folder / "stand_in.h").write_text("#pragma HLS INTERFACE\n")
    (folder / "testbench.cpp").write_text('#include "tiny.cpp"\n')
    return folder


def test_a_build_and_what_it_leaves(hls, tmp_path, capfd, monkeypatch):
    overlays = tmp_path / "overlays"
    overlays.mkdir()
    entry = build.build(TINY, hls, overlays)
    assert capfd.readouterr().err == ""  # no warnings
    assert entry.images == tuple(level.name for level in IMAGES) and entry.kernels == ("vadd",)
    assert read_manifest(overlays) == (entry,)
    assert {path.name for path in overlays.iterdir()} == {"manifest.json", "tiny.xclbin", locks.CHANGE_FILE}
    assert build.stale(TINY, hls, overlays) == ""
    monkeypatch.setenv("BTTLAB_OVERLAYS", str(overlays))
    overlay = pynq.Overlay(str(overlays / "tiny.xclbin"), device=EmulatedU50())
    a = overlay.HBM0.allocate(4, "f4")
    b, c = (overlay.HBM1.allocate(4, "f4") for _ in range(2))
    b[:] = np.arange(4)
    b.sync_to_device()
    call(overlay.vadd_1, a, b, c, 4, 2.0)
    c.sync_from_device()
    assert list(c) == [0, 2, 4, 6]


def test_a_build_elsewhere_gives_the_same_bytes(hls, tmp_path):
    digests = set()
    for place in ("here", "there/and deeper"):
        copy, overlays = tmp_path / place / "hls_src", tmp_path / place / "overlays"
        shutil.copytree(hls, copy)
        overlays.mkdir()
        entry = build.build(TINY, copy, overlays)
        digests.add((entry.sha256, entry.sources))
    assert len(digests) == 1


def test_what_makes_an_overlay_stale(hls, tmp_path):
    assert build.stale(TINY, hls, tmp_path) == "has not been built"
    build.build(TINY, hls, tmp_path)
    (hls / "testbench.cpp").write_text("// no part of the overlay\n")
    assert build.stale(TINY, hls, tmp_path) == ""
    for changed in (
        replace(TINY, emulation_flags=("-DOTHER",)),
        replace(TINY, kernels=(replace(VADD, arguments=VADD.arguments[:4]),)),
    ):
        assert build.stale(changed, hls, tmp_path) == "is older than its sources"
    for file in ("tiny.cpp", "parts/scale.h", "stand_in.h"):
        before = (hls / file).read_text()
        (hls / file).write_text(before + "// changed\n")
        assert build.stale(TINY, hls, tmp_path) == "is older than its sources"
        (hls / file).write_text(before)
    (tmp_path / "tiny.xclbin").write_bytes(b"damaged")
    assert build.stale(TINY, hls, tmp_path) == "is not the file that manifest.json lists"
    build.build(replace(TINY, emulation_flags=("-DOTHER",)), hls, tmp_path)
    assert len(list((hls / "build").glob("tiny-*.so"))) == len(IMAGES)


def test_images_load_on_systems_of_2015(hls, tmp_path):
    for level in IMAGES:
        assert build.portability_faults(build.compile_image(TINY, level, hls)) == []
    (hls / "tiny.cpp").write_text(SOURCE + 'extern "C" float tail(float x) { return __builtin_expf(x); }\n')
    with pytest.raises(BttlabError, match=r"needs GLIBC_2.27, which old systems lack"):
        build.compile_image(TINY, IMAGES[0], hls)
    assert build.portability_faults(b"\0libstdc++.so.6\0libc.so.6\0GLIBC_2.2.5\0") == ["libstdc++.so.6"]


def test_what_does_not_compile(hls, tmp_path, capfd, monkeypatch):
    (hls / "tiny.cpp").write_text(SOURCE + "\nnonsense\n")
    with pytest.raises(BttlabError, match="tiny does not compile for avx512"):
        build.build(TINY, hls, tmp_path)
    assert "nonsense" in capfd.readouterr().err and not (tmp_path / "tiny.xclbin").exists()
    (hls / "tiny.cpp").write_text(SOURCE + "\nint *make(int n) { return new int[n]; }\n")  # needs libstdc++
    with pytest.raises(BttlabError, match="does not compile"):
        build.build(TINY, hls, tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BttlabError, match=r"no C\+\+ compiler 'no-such-compiler'"):
        build.build(TINY, hls, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("int n,", "long n,", "argument 3 of vadd is int n, found long n"),
        ("int n,", "int m,", "argument 3 of vadd is int n, found int m"),
        ("const float *b", "float b", r"argument 1 of vadd is float\* b, found float b"),
        (", float scale)", ")", "argument 4 of vadd is float scale, found nothing"),
        ("float scale)", "float scale, int extra)", "has 6 arguments, 5 are described"),
        ("vadd(", "vsub(", "has no function void vadd"),
    ],
)
def test_a_source_that_is_not_what_is_described(hls, tmp_path, old, new, message):
    source = (hls / "tiny.cpp").read_text()
    assert old in source
    (hls / "tiny.cpp").write_text(source.replace(old, new))
    with pytest.raises(BttlabError, match=message):
        build.build(TINY, hls, tmp_path)


# --- the command


def test_the_command(hls, tmp_path, monkeypatch, capsys):
    overlays = tmp_path / "overlays"
    overlays.mkdir()
    monkeypatch.setenv("BTTLAB_OVERLAYS", str(overlays))
    monkeypatch.setattr(build, "HLS_SOURCE", hls)
    definitions = {"tiny": TINY}
    assert build.main(["--check"], definitions) == 1
    assert capsys.readouterr().out == "tiny has not been built; rebuild it with: make overlays\n"
    assert build.main(["tiny"], definitions) == 0
    assert str(overlays / "tiny.xclbin") in capsys.readouterr().out
    assert build.main(["--check"], definitions) == 0 and capsys.readouterr().out == ""
    assert load_overlay("tiny", "emulated").vadd_1
    with pytest.raises(SystemExit, match="2"):
        build.main(["large"], definitions)


def test_two_processes_add_to_a_manifest_at_the_same_time(tmp_path, monkeypatch):
    (entry,) = read_manifest(overlays_folder())
    write, pool = manifest.write_manifest, ThreadPoolExecutor()

    def add(name):
        manifest.add_entry(tmp_path, replace(entry, name=name, file=f"{name}.xclbin"))

    def write_late(*arguments):
        monkeypatch.setattr(manifest, "write_manifest", write)
        second = pool.submit(add, "second")
        with contextlib.suppress(FutureTimeout):
            second.result(0.2)  # it has to wait
        write(*arguments)

    monkeypatch.setattr(manifest, "write_manifest", write_late)
    add("first")
    pool.shutdown()
    assert [each.name for each in read_manifest(tmp_path)] == ["first", "second"]
    monkeypatch.setattr(locks, "CHANGE_SECONDS", 0.0)
    with locks.changing(tmp_path), pytest.raises(BttlabError, match="another process has been changing files in"):
        add("third")


# --- the overlays of this repository


def test_the_prebuilt_overlays_are_as_new_as_their_sources():
    for definition in build.DEFINITIONS.values():
        assert build.stale(definition, ROOT / "hls_src", ROOT / "overlays") == ""


@pytest.mark.parametrize("name", build.DEFINITIONS)
def test_a_prebuilt_overlay_is_portable(name):
    overlay = read_xclbin((overlays_folder() / f"{name}.xclbin").read_bytes())
    assert set(overlay.images) == {level.name for level in IMAGES}
    assert overlay.kernels == build.DEFINITIONS[name].kernels
    for compiled in overlay.images.values():
        assert build.portability_faults(compiled) == []
        assert not re.search(rb"/(?:root|home|tmp|work)/", compiled)
        assert str(Path.cwd()).encode() not in compiled
