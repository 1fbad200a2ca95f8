"""A number in the notebooks' prose is an input, or it is what the library says; other numbers are printed by cells."""

import json
import re
from pathlib import Path

import pytest

from bttlab.card.processor import sample_dtype
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.estimate.constants import read_data
from bttlab.model import ModelConfig
from bttlab.tensor import FLOWS, flow_cost, optimal_cost
from bttlab.tensor.shapes import tt_shapes
from bttlab_methods.record import by_methods, mean, read_records

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
# Not prose: code, formulas, links, tables, numbers of exercises and notebooks, names such as RTX-3090 and G1.
LEFT_OUT = (
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|<[^>]*>|\*\*\d\.\*\*|^\|.*\|$|arXiv\s[\d.]+",
    r"[Nn]otebooks? [\d, and to]+|[Ee]xercise \d|\b0\d\b(\.\d)?|[A-Za-z]\w*-\d+\w*|[A-Z]+\d+\w*",
)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?<!,)")
WORDS = "two|three|four|five|six|seven|eight|nine|ten|twenty|thirty|forty|fifty|hundred|half|third|sixth"
RATIO = re.compile(rf"\b(?:{WORDS})(?: and a half)? times\b(?! as many| in )")


def prose(name: str) -> str:
    """The notebook's text without what is not prose."""
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    text = re.sub(r"(?m)^\*\d+ minutes.*$", "", text)  # the reading time
    for pattern in LEFT_OUT:
        text = re.sub(pattern, " ", text, flags=re.DOTALL | re.MULTILINE)
    return text


CONFIG = ModelConfig()
PAPER = read_data("published")["training_paper"]["facts"]
MODES = CONFIG.linear_out_modes, CONFIG.linear_in_modes
LAYER = sum(a * n * b for a, n, b in tt_shapes(*MODES, CONFIG.linear_rank))


def from_library() -> dict[str, set[str]]:
    """Numbers that follow from the library, by notebook."""
    sizes = {str(CONFIG.hidden_size), str(CONFIG.linear_rank), str(CONFIG.vocabulary_size)}
    sizes |= {str(mode) for modes in MODES for mode in modes}
    labels = {str(CONFIG.intents), str(CONFIG.slots)}
    published = {f"{PAPER['memory_reduction'][end]:g}" for end in ("low", "high")}
    published |= {f"{PAPER['energy_reduction']['high']:g}"}
    return {
        "00_start_here": labels | published,
        "01_tensor_compression": sizes | {str(CONFIG.hidden_size - 1), f"{LAYER:,}"},
        "02_contraction_flow": sizes | {str(CONFIG.sequence_length), "16"},
        "03_train_on_the_u50": sizes | labels | {f"{sample_dtype().itemsize:,}"},
        "04_memory_and_energy": published,
        "05_design_space": sizes,
        "07_what_would_it_cost": {f"{EPOCH_SAMPLES:,}"},
    }


# What a cell or an exercise sets, or what others have published: inputs, and no results of ours.
INPUTS = {
    "00_start_here": "1 16 4",
    "01_tensor_compression": "0 1 3 5 6 128",
    "02_contraction_flow": "13",
    "03_train_on_the_u50": "0 1 2 3 8 320",
    "04_memory_and_energy": "0 1 2 14 80",
    "05_design_space": "0 1 1.5 2 4 50 70 100 150 200",
    "06_efficient_training": "10",
    "07_what_would_it_cost": "1 2 2.8 2.9 3 3.9 10 13 17 32 45 48 174 512",
    "08_your_own_model": "4 20 64",
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_number_in_the_prose_is_known(name):
    known = from_library().get(name, set()) | set(INPUTS[name].split())
    found = set(NUMBER.findall(prose(name)))
    assert found - known == set(), "print it in a cell, or say in this test where it comes from"
    assert set(INPUTS[name].split()) <= found, "an input that the prose no longer has"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_ratio_in_words_stands_in_the_prose(name):
    assert RATIO.findall(prose(name)) == []


def says(name: str, **facts: bool) -> None:
    """Words of the prose, and whether they hold; `_` is a blank."""
    text = " ".join(prose(name).split())
    for words, holds in facts.items():
        assert words.replace("_", " ") in text and holds, words


def test_numbers_in_words_of_notebook_02():
    costs = {flow: flow_cost(flow, 32, *MODES, CONFIG.linear_rank) for flow in FLOWS}
    both, left, whole = (costs[flow] for flow in ("bidirectional", "right_to_left", "reconstruct"))
    best = optimal_cost(32, *MODES, CONFIG.linear_rank)
    peak, least = (max(cost.forward.peak_elements, cost.backward.peak_elements) for cost in (left, both))
    says(
        "02_contraction_flow",
        factor_of_thirty=round(whole.macs / both.macs, -1) == 30,
        two_thirds_of_the_arithmetic=round(3 * both.macs / left.macs) == 2,
        less_than_half_of_its_memory=2 * least < peak,
        half_a_million_elements=round(CONFIG.hidden_size**2 / 1e6, 1) in (0.5, 0.6),
        saves_a_sixth_of_the_forward_arithmetic=round(1 / (1 - best.macs / both.forward.macs)) == 6,
    )


def test_numbers_in_words_of_notebook_06():
    records = read_records()
    dense = by_methods(records["atis.json"])["dense"]
    tensor = by_methods(records["atis_tensor.json"])
    bytes_of, seconds = (lambda one: one.memory["peak"]["value"]), (lambda one: one.seconds_per_epoch["value"])
    time = mean(dense, seconds) / 2
    says(
        "06_efficient_training",
        In_the_time_of_dense_training=2 * mean(tensor["tensor+stacking"], seconds) <= 1.05 * time,
        a_quarter_of_the_memory=round(mean(dense, bytes_of) / mean(tensor["tensor+stacking"], bytes_of)) == 4,
        about_twice_the_time=round(2 * mean(tensor["tensor+rematerialisation"], seconds) / time) == 2,
    )
