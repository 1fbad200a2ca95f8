"""`make lab` trains for ten seconds only where something has changed since that went well."""

import pytest

from bttlab.cli import main
from bttlab.commands import doctor, passed, self_check
from bttlab.commands.checks import OK, PROBLEM, Check


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """The statuses that coming self-checks have, and, once they were made, nothing."""
    statuses = []
    monkeypatch.setattr(doctor, "EXAMINATIONS", [])

    def train():
        yield Check("self-check", statuses.pop(0), "trained")

    monkeypatch.setattr(self_check, "self_check", train)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BTTLAB_OVERLAYS", str(tmp_path))
    (tmp_path / "manifest.json").write_text("{}")
    return statuses


def _check(*more: str) -> int:
    return main(["doctor", "--self-check", *more])


def test_it_trains_until_it_has_passed(trained, capsys):
    trained += [PROBLEM, OK]
    assert [_check("--once") for _ in range(4)] == [1, 0, 0, 0] and not trained
    assert "self-check: has passed with these overlays" in capsys.readouterr().out


def test_without_once_it_always_trains(trained):
    trained += [OK, OK]
    assert [_check() for _ in range(2)] == [0, 0] and not trained


@pytest.mark.parametrize("change", ["overlays", "packages"])
def test_it_trains_again_when_something_has_changed(trained, tmp_path, monkeypatch, change):
    trained += [OK, OK]
    assert _check("--once") == 0 and len(trained) == 1
    if change == "overlays":
        (tmp_path / "manifest.json").write_text("{} ")
    else:
        monkeypatch.setattr(passed.metadata, "version", lambda name: "0")
    assert _check("--once") == 0 and not trained


def test_where_nothing_can_be_kept_it_trains_again(trained, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    trained += [OK, OK]
    assert [_check("--once") for _ in range(2)] == [0, 0] and not trained
