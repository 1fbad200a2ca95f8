"""One process at a time on a card that is not shared: the lock of its device node."""

import os
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bttlab.card import CardBusyError, load_overlay, release_card, shells
from bttlab.card import card_lock as locks
from bttlab.card.card_lock import device_node, lock_card
from two_users import NOBODY, environment, run_as_nobody, shared_folder, start_as_nobody

HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


def hold(node) -> subprocess.Popen:
    """Let another process take a card, until it reads a line or is killed."""
    command = [sys.executable, "-c", HOLD, str(node)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), bufsize=1
    )
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


def test_the_second_process_is_told_who_has_the_card(card):
    process = hold(device_node(card))
    with pytest.raises(CardBusyError, match=rf"0000:3b:00.1 is in use by process {process.pid} of user \w+: .*--wait"):
        load_overlay("trainer", card)
    with pytest.raises(CardBusyError, match=rf"is in use after 0.3 s by process {process.pid} "):
        lock_card(card, wait=0.3)
    end(process)
    for _ in range(2):  # a process that has the card may load again
        assert load_overlay("trainer", card).device is card


def test_waiting_for_a_card_that_becomes_free(card):
    process = hold(device_node(card))
    process.stdin.write("\n")
    lock_card(card, wait=60)
    release_card(card)
    assert process.wait(60) == 0
    end(hold(device_node(card)))  # it is free


def test_a_card_without_a_node_is_used_with_a_warning(card, caplog, monkeypatch, tmp_path):
    monkeypatch.setattr(shells, "PCI_DEVICES", tmp_path / "absent")
    assert device_node(card) is None
    load_overlay("trainer", card)
    assert "other processes may use it, too" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("is_device", [True, False])
def test_a_stranger_can_neither_lock_nor_remove_a_card_s_node(two_users, monkeypatch, is_device):
    """A node of mode 660, as udev makes it, in a folder of root's; the lock names a holder in its group."""
    with shared_folder(0o755) as folder:
        node = folder / "renderD128"
        (folder / "0000:3b:00.1" / "drm" / "renderD128").mkdir(parents=True)
        os.mknod(node, 0o660 | (stat.S_IFCHR if is_device else stat.S_IFREG), os.makedev(1, 3))
        node.chmod(0o660)
        monkeypatch.setattr(locks, "DEVICES", folder)
        monkeypatch.setattr(shells, "PCI_DEVICES", folder)
        card = SimpleNamespace(_info=SimpleNamespace(mPciSlot=0x3B01))
        for act in ("open(sys.argv[1])", "os.remove(sys.argv[1])"):
            script = f"import os, sys\ntry: {act}\nexcept OSError as error: print(type(error).__name__)"
            assert run_as_nobody(script, node) == "PermissionError"
        os.chown(node, -1, NOBODY)  # now the group's
        member = start_as_nobody(HOLD, node)
        assert member.stdout.readline() == "held\n", member.communicate()
        with pytest.raises(CardBusyError, match=rf"in use by process {member.pid} of user nobody"):
            lock_card(card)
        member.communicate()
        lock_card(card)
        release_card(card)
