"""Files that other users of the machine may have made, swapped or written: what is done with them, and what is not."""

import grp
import os
import pwd
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
from bttlab.util import trust
from bttlab.util.trust import changeable_by_others
from two_users import NOBODY, interpreter_of_nobody, shared_folder
from two_users import environment as environment_of_nobody

from conftest import ROOT


def test_who_can_change_a_file(tmp_path):
    file = tmp_path / "a" / "b" / "file"
    file.parent.mkdir(parents=True)
    file.write_text("")
    assert changeable_by_others(file) is None and changeable_by_others(file.with_name("none")) is None
    for place in (file, file.parent, tmp_path / "a"):
        before = stat.S_IMODE(place.stat().st_mode)
        place.chmod(0o777)
        assert changeable_by_others(file) == (
            place,
            f"every user of this machine can write to {place}; chmod o-w {place}",
        )
        place.chmod(0o1777)
        assert (changeable_by_others(file) is None) == place.is_dir()  # as /tmp
        place.chmod(before)
    (tmp_path / "link").symlink_to(file)
    file.parent.chmod(0o777)
    assert changeable_by_others(tmp_path / "link")[0] == file.parent


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_an_owner_and_a_group_can_change_a_file(tmp_path):
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_text("")
    for place in (file, file.parent):
        os.chown(place, 12002, 0)
        wanted = f"{place} belongs to the user with uid 12002; copy it to a folder of yours"
        assert changeable_by_others(file) == (place, wanted) and changeable_by_others(file, [12002]) is None
        os.chown(place, 0, 13000)
        assert changeable_by_others(file) is None
        place.chmod(0o775)
        assert changeable_by_others(file) == (place, f"group 13000 can write to {place}; chmod g-w {place}")
        os.chown(place, 0, 0)  # a group of root's alone
        assert changeable_by_others(file) is None


def test_a_group_of_one_user_is_that_user(monkeypatch):
    """As with the umask 002 of hosts where each account has a group of its own."""
    users = ("ada", 1001, 2001), ("bob", 1002, 2002), ("eve", 1003, 2002)
    accounts = [pwd.struct_passwd((name, "x", uid, gid, "", "/", "")) for name, uid, gid in users]
    members = {"ada": [], "bob": [], "lab": ["ada"], "all": ["ada", "bob"]}
    groups = {2001 + n: grp.struct_group((name, "x", 2001 + n, members[name])) for n, name in enumerate(members)}
    monkeypatch.setattr(pwd, "getpwall", lambda: accounts)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {account.pw_name: account for account in accounts}[name])
    monkeypatch.setattr(grp, "getgrgid", lambda gid: groups[gid])
    ada = frozenset([0, 1001])
    assert [trust._has_only(gid, ada) for gid in (*groups, 2005)] == [True, False, True, False, False]


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
@pytest.mark.parametrize(("owner", "group", "mode"), [(12002, 0, 0o644), (0, 13000, 0o664)])
def test_a_manifest_of_another_user_or_group(owner, group, mode, lab_overlays):
    manifest = lab_overlays / "manifest.json"
    os.chown(manifest, owner, group)
    manifest.chmod(mode)
    with pytest.raises(OverlayError, match=f"manifest.json cannot be trusted: .*{owner or group}"):
        load_overlay("trainer", EmulatedU50())
    load_overlay("trainer", EmulatedU50(), trust=True)


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
