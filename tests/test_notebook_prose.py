"""What the notebooks say of the data holds on both corpora that they may run on: ATIS, and the one that is built in."""

from pathlib import Path

import nbformat
import pytest
import torch

from bttlab.data import load_corpus
from bttlab.lab import truncate
from bttlab.lab.compression_explorer import MOST_RANK
from bttlab.methods.pretrained import _source
from bttlab.model import ModelConfig, initial_parameters

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
MODES = (12, 8, 8), (8, 8, 12)


@pytest.fixture(scope="module", params=["atis", "airline"])
def corpus(request):
    return load_corpus(request.getfixturevalue("atis") if request.param == "atis" else "airline")


def _says(name: str, sentence: str) -> None:
    """The notebook says it, wherever its lines break."""
    (path,) = FOLDER.glob(f"{name}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    assert sentence in " ".join(" ".join(cell.source for cell in cells if cell.cell_type == "markdown").split())


def test_six_words_in_ten_are_outside_of_any_slot(corpus):
    _says("00", "In the whole corpus six words in ten bear `O`")
    tags = [tag for tags in corpus.train.slots for tag in tags]
    assert round(10 * tags.count("O") / len(tags)) == 6


def test_what_lora_starts_from(corpus):
    _says("06", "airline corpus (on the first half of it, where that is the corpus here, too)")
    source, built_in = _source(corpus), load_corpus("airline")
    share = 0.5 if corpus.train.words == built_in.train.words else 1
    assert source.train.words == built_in.train.words[: int(share * len(built_in.train))]


def test_the_rank_at_the_sliders_end():
    """Training moves the matrix by a few per cent only, so what holds for random numbers holds for the trained one."""
    _says("01", f"at the slider's end, {MOST_RANK}, more than half of the norm is still lost")
    _says("01", "though the cores hold more than a third of the matrix's numbers")
    start = initial_parameters(ModelConfig(format="dense"), seed=0)["encoders.1.first.weight"]
    found = truncate(torch.from_numpy(start), *MODES, MOST_RANK)
    assert found.error > 0.6 and 1 / 3 < found.parameters / 768**2 < 0.4
