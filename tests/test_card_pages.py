"""The tables of README.md and docs/, and the worked example, are what the model and the compiler give now."""

import pytest
from card_pages import PAGES, RECEIPT, core_joules, core_name, recorded_core_seconds, write

from bttlab.data.epoch import EPOCH_SAMPLES

from conftest import ROOT


@pytest.mark.long  # 18 programs
def test_the_tables_are_up_to_date(tmp_path):
    for name in (*PAGES, RECEIPT, "docs/benchmarks.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    write(tmp_path)
    for page in (*PAGES, RECEIPT):
        kept, made = ((folder / page).read_text() for folder in (ROOT, tmp_path))
        assert kept == made, f"{page}: make figures"


def test_the_energy_of_a_core_is_that_of_the_recorded_benchmark():
    """A benchmark that is recorded again changes a row of another page."""
    seconds = recorded_core_seconds(ROOT / "docs" / "benchmarks.json")
    low, middle, high = core_joules(seconds, EPOCH_SAMPLES)
    row = f"| {core_name(seconds)} | {middle:.0f} ({low:.0f} to {high:.0f}) |"
    assert row in (ROOT / "docs" / "energy.md").read_text(), "python tools/card_pages.py"
