"""Files that other users of the machine may have made, swapped or written: what is done with them, and what is not."""

import re
import shutil
import stat
import subprocess

import pytest

import tiny_runs
from bttlab.card import EmulatedU50, emulation, load_overlay
from bttlab.card.image import NativeImage
from bttlab.card.kernel import OverlayError
from bttlab.card.manifest import overlays_folder
from bttlab.util.files import writable_by_others
from two_users import NOBODY, interpreter_of_nobody, shared_folder
from two_users import environment as environment_of_nobody

from conftest import ROOT


def test_who_can_write_on_the_way_to_a_file(tmp_path):
    file = tmp_path / "a" / "b" / "file"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert writable_by_others(file) is None and writable_by_others(file.with_name("none")) is None
    for place in (file, file.parent, tmp_path / "a"):
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(0o777)
        assert writable_by_others(file) == place
        place.chmod(0o1777)
        assert (writable_by_others(file) is None) == place.is_dir()  # as /tmp
        place.chmod(before)
    (tmp_path / "link").symlink_to(file)
    file.parent.chmod(0o777)
    assert writable_by_others(tmp_path / "link") == file.parent


# --- overlays


@pytest.fixture
def lab_overlays(tmp_path, monkeypatch):
    """A copy of an overlay and the manifest, and no trust from tests before."""
    folder = tmp_path / "overlays"
    folder.mkdir()
    for name in ("manifest.json", "trainer.xclbin"):
        shutil.copy(overlays_folder() / name, folder)
    monkeypatch.setenv("BTTLAB_OVERLAYS", str(folder))
    monkeypatch.setattr(EmulatedU50, "_trusted", set())
    return folder


def test_a_manifest_that_everybody_may_write(lab_overlays):
    """With it comes whatever overlay its writer likes."""
    load_overlay("trainer", EmulatedU50())
    for place in (lab_overlays, lab_overlays / "manifest.json"):
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(0o777)
        with pytest.raises(OverlayError, match=f"every user of this machine can write to {place}; chmod o-w"):
            load_overlay("trainer", EmulatedU50())
        load_overlay("trainer", EmulatedU50(), trust=True)
        EmulatedU50._trusted.clear()
        place.chmod(before)


@pytest.mark.parametrize("after", range(4))
def test_an_overlay_that_is_swapped_between_check_and_load(after, lab_overlays, monkeypatch):
    """Whatever is read when: code runs only if these very bytes were checked."""
    path, reads, loaded = lab_overlays / "trainer.xclbin", [], []
    sound = path.read_bytes()
    swapped = sound.replace(b"\x7fELF", b"\x7fELG")
    assert swapped != sound

    def read(place):
        reads.append(place)
        if len(reads) == after:
            path.write_bytes(swapped)
        return original(place)

    original = emulation.read_file
    monkeypatch.setattr(emulation, "read_file", read)
    monkeypatch.setattr("bttlab.card.overlay.read_file", read)
    load = NativeImage.__init__
    monkeypatch.setattr(NativeImage, "__init__", lambda self, image: (loaded.append(image), load(self, image))[1])
    try:
        load_overlay(path, EmulatedU50())
    except OverlayError:
        assert not loaded
    else:
        assert loaded and all(image in sound for image in loaded)


# --- another user's home, another user's folder


@pytest.mark.long
@pytest.mark.parametrize("command", [["doctor"], ["train", "--samples", "1", "--device", "emulated"], ["runs", "list"]])
def test_a_user_whose_home_may_not_be_written(command, two_users):
    with shared_folder(0o777) as folder:
        (folder / "home").mkdir(mode=0o555)
        variables = environment_of_nobody(HOME=str(folder / "home"), BTTLAB_OVERLAYS=str(ROOT / "overlays"))
        options = ["--data", str(tiny_runs.write_corpus(folder / "corpus"))] if command[0] == "train" else []
        script = f"import sys; from bttlab.cli import main; sys.exit(main({command + options}))"
        done = subprocess.run(
            [interpreter_of_nobody(), "-c", script],
            cwd=folder,
            env=variables,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == 0 or command == ["doctor"], done.stderr
        if command[0] == "train":
            assert "bttlab runs list will not show the run" in done.stderr
            assert list(folder.glob("runs/*/checkpoint.safetensors"))


def test_the_tests_that_the_page_on_security_names_exist():
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| can", "| what"))]
    assert [row for row in rows if "`test_" not in row] == []
    named = set(re.findall(r"`(test_\w+)`", text))
    there = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 20 and named - there == set()
