"""The tables of docs/accelerator.md and docs/energy.md are what the model says now."""

from collections import Counter

from bttlab.data import load_corpus
from bttlab.lab import Workload
from bttlab.lab.card_pages import PAGES, mean_sample, write
from bttlab.model import ModelConfig

from conftest import ROOT


def test_the_tables_are_what_the_model_says(atis, tmp_path):
    for name in (*PAGES, "benchmarks.json"):
        (tmp_path / name).write_bytes((ROOT / "docs" / name).read_bytes())
    samples = Workload.of(load_corpus(str(atis), "unk"), ModelConfig()).train
    write(tmp_path, Counter(samples.lengths.tolist()), mean_sample(samples))
    for page in PAGES:
        kept, made = ((folder / page).read_text() for folder in (ROOT / "docs", tmp_path))
        assert kept == made, f"docs/{page}: bttlab estimate --data atis --docs docs"
