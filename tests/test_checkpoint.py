"""Checkpoints: written atomically, checked when read, and never trusted blindly."""

import errno
import os
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from bttlab.data import load_corpus
from bttlab.model import initial_parameters
from bttlab.runs import Checkpoint, CheckpointError, CheckpointStore, CorpusRecord, read_checkpoint, tensors_digest
from bttlab.runs import checkpoint as module
from bttlab.runs.checkpoint import to_weights
from tiny_runs import CONFIG, settings


@pytest.fixture(scope="module")
def checkpoint(corpus):
    parameters = initial_parameters(CONFIG, 0)
    state = {"step": np.asarray(7, np.int64)} | {f"first_moment.{n}": a + 1 for n, a in parameters.items()}
    return Checkpoint(
        settings(corpus, "momentum", samples=9),
        CorpusRecord.of(load_corpus(corpus), CONFIG),
        "the PyTorch reference",
        epochs_done=2,
        losses=np.array([3.5, np.float32(1) / 3], np.float32),
        seconds=1.25,
        parameters=parameters,
        optimizer_state=state,
    )


def later(checkpoint, epochs_done: int):
    return replace(checkpoint, epochs_done=epochs_done)


def same(a: Checkpoint, b: Checkpoint) -> bool:
    plain = ("settings", "corpus", "device", "epochs_done", "seconds")
    tensors = ("parameters", "optimizer_state")
    return (
        all(getattr(a, name) == getattr(b, name) for name in plain)
        and all(tensors_digest(getattr(a, name)) == tensors_digest(getattr(b, name)) for name in tensors)
        and np.array_equal(a.losses, b.losses)
    )


def test_round_trip(tmp_path, checkpoint):
    store = CheckpointStore(tmp_path)
    store.save(checkpoint)
    read, warning = CheckpointStore(tmp_path).load()
    assert warning is None and same(read, checkpoint)
    assert list(read.parameters) == list(checkpoint.parameters)  # the order of the model
    assert os.listdir(tmp_path) == ["checkpoint.safetensors"]
    tensors = safetensors.numpy.load_file(store.latest)
    assert np.array_equal(tensors["slot_head.weight"], checkpoint.parameters["slot_head.weight"])


LAYOUTS = {
    "Fortran order": np.asfortranarray,
    "transposed": lambda array: np.ascontiguousarray(array.T).T,
    "strided": lambda array: np.repeat(array, 2, -1)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_in_any_memory_layout_are_stored_with_their_values(tmp_path, checkpoint, layout):
    """safetensors.numpy 0.8.0 stores the memory of an array as it lies, without a word."""

    def laid_out(tensors):
        return {name: LAYOUTS[layout](array) if array.ndim else array for name, array in tensors.items()}

    moved = laid_out(checkpoint.parameters)
    assert not all(array.flags.c_contiguous for array in moved.values())
    moved = replace(checkpoint, parameters=moved, optimizer_state=laid_out(checkpoint.optimizer_state))
    CheckpointStore(tmp_path).save(moved)
    read, warning = CheckpointStore(tmp_path).load()  # its digest is of the values, too
    assert warning is None and same(read, checkpoint)
    for name, array in checkpoint.parameters.items():
        assert np.array_equal(read.parameters[name], array), name
    weights = []
    for folder, tensors in (("plain", checkpoint), ("moved", moved)):
        (tmp_path / folder).mkdir()
        CheckpointStore(tmp_path / folder).save(tensors)
        to_weights(tmp_path / folder, tmp_path / f"{folder}.safetensors")
        weights.append(tensors_digest(safetensors.numpy.load_file(tmp_path / f"{folder}.safetensors")))
    assert weights[0] == weights[1]


def test_a_checkpoint_chooses_neither_overlay_nor_card(tmp_path, checkpoint, monkeypatch):
    """What another user's checkpoint names would be loaded on this host, as a bitstream or as native code."""
    named = replace(checkpoint, settings=replace(checkpoint.settings, overlay="/tmp/evil.xclbin", device="1"))
    store = CheckpointStore(tmp_path)
    store.save(named)
    assert b"evil" not in store.latest.read_bytes()
    monkeypatch.setattr(module, "_of_any_host", lambda settings: settings)  # as one that a stranger wrote
    store.save(named)
    assert b"evil" in store.latest.read_bytes()
    monkeypatch.undo()
    read = CheckpointStore(tmp_path).load()[0].settings
    assert (read.overlay, read.device) == (None, "auto")
    reference = replace(named, settings=replace(named.settings, device="reference"))
    store.save(reference)
    assert store.load()[0].settings.device == "reference"


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "missing", "folder"])
def test_a_damaged_one_gives_way_to_the_one_before(tmp_path, checkpoint, damage):
    store = CheckpointStore(tmp_path)
    for epoch in (1, 2):
        store.save(later(checkpoint, epoch))
    data = bytearray(store.latest.read_bytes())
    data[-1] ^= 1
    store.latest.unlink()
    if damage == "folder":
        store.latest.mkdir()
    elif damage != "missing":
        store.latest.write_bytes({"torn": data[:-9], "flipped": data, "empty": b""}[damage])
    store = CheckpointStore(tmp_path)
    read, warning = store.load()
    assert read.epochs_done == 1 and str(store.latest) in warning and "going back to the one before" in warning
    if damage == "folder":
        return
    store.save(later(checkpoint, 3))  # must not put the damaged one in the place of the sound one
    assert read_checkpoint(store.latest).epochs_done == 3
    assert read_checkpoint(store.previous).epochs_done == 1


def test_nothing_sound(tmp_path, checkpoint):
    store = CheckpointStore(tmp_path)
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        store.load()
    store.latest.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"nor is the one before of use.*start the run again"):
        store.load()


def full_disk(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_no_room_keeps_the_old_one(tmp_path, checkpoint, monkeypatch, call):
    store = CheckpointStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full_disk)
        patch.setattr(module.Path, "replace", full_disk)
        with pytest.raises(CheckpointError, match=r"\(No space left.*make room, .*, and start the run again"):
            store.save(checkpoint)
    store.save(later(checkpoint, 1))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full_disk)
        patch.setattr(module.Path, "replace", full_disk)
        with pytest.raises(CheckpointError, match=r"cannot be saved \(No space left.*the checkpoint before it stays"):
            store.save(later(checkpoint, 2))
    assert os.listdir(tmp_path) == ["checkpoint.safetensors"] and store.load()[0].epochs_done == 1


def test_what_a_crash_leaves_at_any_moment_can_be_read(tmp_path, checkpoint, monkeypatch):
    class Crash(BaseException):
        pass

    events = []
    operations = {"fsync": os.fsync, "replace": module.Path.replace}

    def step(name):
        def call(*arguments):
            events.append(name)
            if len(events) == crash_at:
                raise Crash
            return operations[name](*arguments)

        return call

    for crash_at in range(1, 5):
        store = CheckpointStore(tmp_path)
        store.save(later(checkpoint, 1))
        store.save(later(checkpoint, 2))
        events.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", step("fsync"))
            patch.setattr(module.Path, "replace", step("replace"))
            with pytest.raises(Crash):
                store.save(later(checkpoint, 3))
        assert events == ["fsync", "replace", "replace", "fsync"][:crash_at]  # content is safe before names change
        read, _ = CheckpointStore(tmp_path).load()
        assert read.epochs_done == (3 if crash_at == 4 else 2)


def test_a_newer_format_is_no_damage(tmp_path, checkpoint, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(later(checkpoint, 1))
    monkeypatch.setattr(module, "FORMAT", 3)
    store.save(later(checkpoint, 2))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="of format 3, this bttlab reads formats 1 and 2"):
        CheckpointStore(tmp_path).load()
