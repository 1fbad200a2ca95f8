"""The table of transformers' architectures: of its record, and what the record says of some of them."""

import importlib.util
import json

import architectures
import pytest

from conftest import ROOT

SOME = ("bert", "gpt2", "llama", "bloom")  # the last is refused


def record() -> dict:
    return json.loads(architectures.RECORD.read_text(encoding="utf-8"))


def test_the_page_is_of_the_record(tmp_path):
    (tmp_path / "docs").mkdir()
    page = ROOT / architectures.PAGE
    (tmp_path / architectures.PAGE).write_bytes(page.read_bytes())
    architectures.write(tmp_path)
    assert page.read_text() == (tmp_path / architectures.PAGE).read_text(), "python tools/architectures.py"


def test_each_architecture_has_a_row_and_no_loss_differs():
    rows = record()["rows"]
    assert list(rows) == architectures.ARCHITECTURES
    for name, heads in rows.items():
        assert heads, name
        assert not any(outcome.startswith("differs") for outcome in heads.values()), (name, heads)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not here")
def test_some_architectures_are_as_recorded():
    import transformers

    kept = record()
    found = architectures.measured(SOME)
    for name in SOME:
        outcomes = [
            {head: what.partition(":")[0] for head, what in heads.items()}
            for heads in (found[name], kept["rows"][name])
        ]
        assert outcomes[0] == outcomes[1], (name, transformers.__version__, kept["versions"])
    assert architectures.TRAINS in found["bert"].values() and "refused" in str(found["bloom"])
