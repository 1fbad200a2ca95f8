"""Pauses of the collection of cyclic garbage end where they should, and leave it as it was."""

import gc

import pytest

from bttlab.cli import main
from bttlab.runs import Run
from bttlab.util.collection import paused_at_start, without_collection


@pytest.fixture
def nothing_frozen():
    """Objects that the tests' start has frozen are not, within a test."""
    count = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if count:
        gc.freeze()


def test_it_is_off_within_the_context_and_as_before_after_it():
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError), without_collection():
        raise ValueError
    assert gc.isenabled()


@pytest.mark.usefixtures("nothing_frozen")
def test_it_goes_on_when_a_command_has_started_without_what_the_start_made():
    with paused_at_start() as started:
        made = [[] for _ in range(1000)]
        assert not gc.isenabled()
        started()
        assert gc.isenabled() and gc.get_freeze_count() > len(made)
        with paused_at_start() as inner:  # a command within another
            inner()
        assert gc.isenabled() and gc.get_freeze_count() > len(made)
    assert gc.isenabled() and not gc.get_freeze_count()


@pytest.mark.usefixtures("nothing_frozen")
def test_a_collection_that_the_user_turned_off_stays_off():
    gc.disable()
    try:
        with paused_at_start() as started:
            started()
            assert not gc.isenabled() and not gc.get_freeze_count()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.usefixtures("nothing_frozen")
def test_a_training_is_collected_and_the_start_before_it_is_not(tiny_airline, tmp_path, monkeypatch):
    seen, train = [], Run.train

    def trained(self, *arguments, **keywords):
        seen.append((gc.isenabled(), gc.get_freeze_count() > 0))
        return train(self, *arguments, **keywords)

    monkeypatch.setattr(Run, "train", trained)
    given = ["--data", str(tiny_airline), "--device", "reference", "--encoders", "1", "--samples", "1"]
    assert main(["train", *given, "--out", str(tmp_path / "run")]) == 0
    assert seen == [(True, True)] and gc.isenabled() and not gc.get_freeze_count()
    assert main(["train", *given, "--out", str(tmp_path / "run")]) == 2  # the folder is taken
    assert gc.isenabled() and not gc.get_freeze_count()


def test_what_others_have_frozen_stays_frozen():
    gc.freeze()
    count = gc.get_freeze_count()
    with paused_at_start() as started:
        started()
    assert gc.isenabled() and gc.get_freeze_count() > 0.9 * count  # some may have gone
