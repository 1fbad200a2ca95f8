"""One process at a time on a card: who is told what, who waits, and what a dead process leaves."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pynq
import pytest

from bttlab.u50 import CardBusyError, overlay, release_card
from bttlab.u50.card_lock import CardLock, stale_notes

CARD = "0000:3b:00.1"
HOLD = """
import sys, time
from bttlab.u50.card_lock import CardLock
CardLock(sys.argv[1], sys.argv[2]).acquire("train_enc4")
print("held", flush=True)
time.sleep(float(sys.argv[3]))
"""


def hold(folder: Path, seconds: float) -> subprocess.Popen:
    """Let another process take the card, and give it back by ending."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, CARD, folder, str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


def test_the_second_process_is_told_who_has_the_card(tmp_path):
    process = hold(tmp_path, 60)
    told = rf"0000:3b:00.1 is held by process {process.pid} since \d{{4}}-.* with train_enc4: .*--wait SECONDS"
    with pytest.raises(CardBusyError, match=told):
        CardLock(CARD, tmp_path).acquire("train_enc2")
    with pytest.raises(CardBusyError, match=rf"is held after 0.3 s by process {process.pid} "):
        CardLock(CARD, tmp_path).acquire("train_enc2", wait=0.3)
    CardLock("0000:5e:00.1", tmp_path).acquire("train_enc2")  # another card is free
    assert stale_notes(tmp_path) == {}
    end(process)


def test_waiting_for_a_card_that_becomes_free(tmp_path):
    process = hold(tmp_path, 0.5)
    lock = CardLock(CARD, tmp_path)
    lock.acquire("train_enc2", wait=60)
    lock.release()
    assert process.wait(60) == 0


def test_a_process_that_died_leaves_a_note_and_no_lock(tmp_path):
    process = hold(tmp_path, 60)
    end(process)
    [(path, holder)] = stale_notes(tmp_path).items()
    assert (holder.pid, holder.overlay) == (process.pid, "train_enc4")
    lock = CardLock(CARD, tmp_path)
    lock.acquire("train_enc2")
    assert lock.path == path and stale_notes(tmp_path) == {}
    lock.release()


def test_a_process_number_that_was_given_again_is_another_process(tmp_path):
    lock = CardLock(CARD, tmp_path)
    lock.acquire("train_enc2")
    note = lock.path.read_text()
    assert f'"pid": {os.getpid()}' in note
    lock.path.write_text(re.sub(r'"started": (\d+)', r'"started": 1\1', note))
    assert [holder.pid for holder in stale_notes(tmp_path).values()] == [os.getpid()]
    lock.release()


@pytest.mark.parametrize(
    "note", ["", "{", "[1]", '{"pid": "x", "started": 1, "since": 0, "overlay": ""}', "\xff" * 9000]
)
def test_a_note_that_is_none_is_no_obstacle(tmp_path, note):
    lock = CardLock(CARD, tmp_path)
    lock.path.write_text(note)
    assert stale_notes(tmp_path) == {}
    lock.acquire("train_enc2")
    with pytest.raises(CardBusyError):
        CardLock(CARD, tmp_path).acquire("train_enc4")  # flock holds between two descriptors of a process as well
    lock.release()


def test_a_lock_file_that_cannot_be_opened(tmp_path):
    lock = CardLock(CARD, tmp_path)
    lock.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CardBusyError, match="cannot be opened"):
        lock.acquire("train_enc2")
    assert not (tmp_path / "elsewhere").exists()


def test_an_overlay_takes_the_lock_of_a_real_card(tmp_path, monkeypatch):
    card = types.SimpleNamespace(name="fake_u50", tag="xrt0", sysfs_path=f"/sys/devices/pci0000:00/{CARD}")
    card = type("FakeCard", (pynq.Device,), {"__init__": lambda self: self.__dict__.update(vars(card))})()
    monkeypatch.setattr(overlay, "CardLock", lambda name: CardLock(name, tmp_path))
    monkeypatch.setattr(overlay, "_from_manifest", lambda name: {("hw", "fake_u50"): Path("a.xclbin")})
    monkeypatch.setattr(pynq, "Overlay", lambda path, device: (path, device))
    process = hold(tmp_path, 60)
    with pytest.raises(CardBusyError, match=f"process {process.pid} .* with train_enc4"):
        overlay.load_overlay("train_enc2", card)
    end(process)
    for _ in range(2):  # a process that has the card may load again
        assert overlay.load_overlay("train_enc2", card) == ("a.xclbin", card)
    assert '"overlay": "train_enc2"' in (tmp_path / "bttlab-0000-3b-00-1.lock").read_text()
    release_card(card)
    assert (tmp_path / "bttlab-0000-3b-00-1.lock").read_text() == ""
