"""Facts in the notebooks' text hold on ATIS and on the built-in corpus."""

import pytest
import torch

from bttlab.data import load_corpus
from bttlab.lab import truncate
from bttlab.lab.compression_explorer import MOST_RANK
from bttlab.model import ModelConfig, initial_parameters
from bttlab_methods.pretrained import source_corpus

MODES = (12, 8, 8), (8, 8, 12)


@pytest.fixture(scope="module", params=["atis", "airline"])
def corpus(request):
    return load_corpus(request.getfixturevalue("atis") if request.param == "atis" else "airline")


def test_six_words_in_ten_are_outside_of_any_slot(corpus):
    tags = [tag for tags in corpus.train.slots for tag in tags]
    assert round(10 * tags.count("O") / len(tags)) == 6


def test_what_lora_starts_from(corpus):
    source, built_in = source_corpus(corpus), load_corpus("airline")
    share = 0.5 if corpus.train.words == built_in.train.words else 1
    assert source.train.words == built_in.train.words[: int(share * len(built_in.train))]


def test_the_rank_at_the_sliders_end():
    """Training moves the matrix by a few per cent only, so what holds for random numbers holds for the trained one."""
    start = initial_parameters(ModelConfig(format="dense"), seed=0)["encoders.1.first.weight"]
    found = truncate(torch.from_numpy(start), *MODES, MOST_RANK)
    assert found.error > 0.6 and 1 / 3 < found.parameters / 768**2 < 0.4
