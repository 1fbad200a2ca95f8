"""The tables of README.md and docs/, and the worked example, are what the model and the compiler give now."""

import pytest
from card_pages import PAGES, RECEIPT, write

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
