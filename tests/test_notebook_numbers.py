"""A number in the notebooks' prose is an input, or it is what the library says; other numbers are printed by cells."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from bttlab.baseline.gpus import find_gpu
from bttlab.card.layer import layer_program
from bttlab.card.processor import sample_dtype
from bttlab.compiler.program import LANES, compile
from bttlab.data import load_corpus
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.estimate.card import estimate
from bttlab.estimate.constants import read_data
from bttlab.estimate.gpu import model_step, typical_sample
from bttlab.lab import Design, flow_cycles, truncate
from bttlab.lab.comparison import RECORD
from bttlab.lab.dashboard_runs import GOOD_SAMPLES
from bttlab.lab.dashboard_targets import BASELINES
from bttlab.model import ModelConfig, initial_parameters
from bttlab.tensor import FLOWS, TTLinear, flow_cost, optimal_cost, order_cost
from bttlab.tensor.shapes import tt_shapes
from bttlab_cost import xia2024
from bttlab_cost.models import find_model
from bttlab_methods.record import by_methods, mean, read_records

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
# Not prose: code, formulas, links, tables, numbers of exercises and notebooks, names such as RTX-3090 and G1.
LEFT_OUT = (
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|<[^>]*>|\*\*\d\.\*\*|^\|.*\|$|arXiv\s[\d.]+",
    r"[Nn]otebooks? [\d, and to]+|[Ee]xercise \d|\b0\d\b(\.\d)?|[A-Za-z]\w*-\d+\w*|[A-Z]+\d+\w*",
)
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?<!,)")


def prose(name: str) -> str:
    """The notebook's text without what is not prose."""
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    text = re.sub(r"(?m)^\*\d+ minutes.*$", "", text)  # the reading time
    for pattern in LEFT_OUT:
        text = re.sub(pattern, " ", text, flags=re.DOTALL | re.MULTILINE)
    return text


CONFIG, AIRLINE = ModelConfig(), load_corpus("airline")
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
    "08_your_own_model": "4 13 20 64",
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_number_in_the_prose_is_known(name):
    known = from_library().get(name, set()) | set(INPUTS[name].split())
    found = set(NUMBER.findall(prose(name)))
    assert found - known == set(), "print it in a cell, or say in this test where it comes from"
    assert set(INPUTS[name].split()) <= found, "an input that the prose no longer has"


def of_start_here() -> dict[str, bool]:
    dense, tensor = (ModelConfig(format=format).parameters_count for format in ("dense", "tensor"))
    step = model_step(find_gpu("RTX-3090"), "dense", "graphs", ModelConfig(), typical_sample(AIRLINE, CONFIG))
    return {
        "hundreds of megabytes": 1e8 < step.process_bytes[1] < 1e9,
        "nine million parameters": round(dense / 1e6) == 9,
        "three hundred thousand": round(tensor / 1e5) == 3,
    }


def of_compression() -> dict[str, bool]:
    matrix = initial_parameters(ModelConfig(format="dense"), seed=0)["encoders.1.first.weight"]
    cut = truncate(torch.from_numpy(matrix), *MODES, 128)
    return {
        "more than half of the norm is still lost": cut.error > 0.5,
        "more than a third of the matrix's numbers": cut.parameters > CONFIG.hidden_size**2 / 3,
        "a hundredth of the numbers": round(100 * LAYER / CONFIG.hidden_size**2) == 1,
    }


def of_contraction() -> dict[str, bool]:
    costs = {flow: flow_cost(flow, 32, *MODES, CONFIG.linear_rank) for flow in FLOWS}
    both, left, whole = (costs[flow] for flow in ("bidirectional", "right_to_left", "reconstruct"))
    best = optimal_cost(32, *MODES, CONFIG.linear_rank)
    peak, least = (max(cost.forward.peak_elements, cost.backward.peak_elements) for cost in (left, both))
    twelve = [flow_cost(flow, 12, *MODES, CONFIG.linear_rank).macs for flow in ("bidirectional", "right_to_left")]
    layer = TTLinear(768, 768, *MODES, CONFIG.linear_rank)
    cycles = [flow_cycles(layer, flow, 10) for flow in ("bidirectional", "right_to_left")]

    def winners(tokens: int) -> list[str]:
        """Return the order with the least arithmetic, memory and cycles."""
        rows = {}
        for name, flow in {"right": "right_to_left", "both": "bidirectional", "two": (2, 2)}.items():
            program = layer_program(layer, tokens, flow)
            cost = order_cost(program.order, tokens, *MODES, CONFIG.linear_rank)
            memory = max(cost.forward.peak_elements, cost.backward.peak_elements)
            rows[name] = cost.macs, memory, flow_cycles(layer, flow, tokens)
        return [min(rows, key=lambda name: rows[name][column]) for column in range(3)]

    return {
        "**One token: right to left**, in all three columns": winners(1) == ["right"] * 3,
        "two merged.** It has the least arithmetic, memory and cycles": winners(13) == ["two"] * 3,
        "The paper's flow is second": flow_cycles(layer, "bidirectional", 13) < flow_cycles(layer, "right_to_left", 13),
        "fewest cycles, though two merged still has the least arithmetic and memory": winners(32)
        == ["two", "two", "both"],
        "it needs less memory, too": all(
            flow_cost("right_to_left", t, *MODES, CONFIG.linear_rank).forward.peak_elements
            < flow_cost("bidirectional", t, *MODES, CONFIG.linear_rank).forward.peak_elements
            for t in range(1, 13)
        ),
        "factor of thirty": round(whole.macs / both.macs, -1) == 30,
        "about two thirds of the arithmetic": round(3 * both.macs / left.macs) == 2,
        "less than half of its memory": 2 * least < peak,
        "half a million elements": round(CONFIG.hidden_size**2 / 1e6, 1) in (0.5, 0.6),
        "saves a sixth of the forward arithmetic": round(1 / (1 - best.macs / both.forward.macs)) == 6,
        "about a dozen tokens": round(np.mean([1 + len(words) for words in AIRLINE.train.words])) in (11, 12, 13),
        "takes twice its forward arithmetic backward": all(
            one.backward.macs == 2 * one.forward.macs for one in (left, whole)
        ),
        "the twelve rows": CONFIG.linear_rank == 12,
        "met at twelve": twelve[0] == twelve[1],
        "Well before twelve": cycles[0] < cycles[1],
    }


def of_training() -> dict[str, bool]:
    return {
        "not as thirty-two": CONFIG.sequence_length == 32,
        "some thousand instructions": 1000 < len(compile(CONFIG).sample) < 5000,
        "every few hundred samples": 200 <= GOOD_SAMPLES <= 500,
        "twice with tensor trains": sum(name != "dense" for name in BASELINES) == 2,
    }


def idle() -> float:
    """The share of an idle board in the card's power."""
    power = estimate(CONFIG).power
    return power.components["board, idle"].value / power.running.value


def of_energy() -> dict[str, bool]:
    ways = json.loads(RECORD.read_text(encoding="utf-8"))["ways"]
    batches = {way["batch"] for way in ways} == {1, 16}
    return {
        "idles at half of its power": 0.45 < idle() < 0.6,
        "more than half of the card's power": idle() > 0.5,
        "ten seeds each": {len(way["samples"]) for way in ways} == {10},
        "train on sixteen utterances": batches,
        "Batches of sixteen": batches,
        "does sixteen utterances": batches,
    }


def of_design() -> dict[str, bool]:
    shares, taken = Design(2, 12).estimate({13: 1}).work.shares, estimate(CONFIG).resources
    widest = max(found.high / found.low for found in map(taken.total, ("lookup_tables", "flip_flops", "dsps")))
    return {
        "busy for three quarters of the time": {round(4 * shares[name]) for name in ("engine 0", "engine 1")} == {3},
        "above 70 %, as of the LUTs": taken.utilisation("lookup_tables") > 0.7,
        "a factor of two": round(widest) == 2,
        "sixteen rows": LANES == 16,
        "takes them twice": LANES == 16,
        "An idle board draws half": 0.45 < idle() < 0.6,
    }


def of_methods() -> dict[str, bool]:
    records = read_records()
    dense = by_methods(records["atis.json"])["dense"]
    tensor = by_methods(records["atis_tensor.json"])
    bytes_of, seconds = (lambda one: one.memory["peak"]["value"]), (lambda one: one.seconds_per_epoch["value"])
    time = mean(dense, seconds) / 2
    return {
        "In the time of dense training": 2 * mean(tensor["tensor+stacking"], seconds) <= 1.05 * time,
        "a quarter of the memory": round(mean(dense, bytes_of) / mean(tensor["tensor+stacking"], bytes_of)) == 4,
        "the best of the dense model's, by less than a point": 0
        < min(one.scores["test"]["slot_f1"] for one in tensor["tensor+stacking"])
        - max(one.scores["test"]["slot_f1"] for one in dense)
        < 0.01,
        "about twice the time": round(2 * mean(tensor["tensor+rematerialisation"], seconds) / time) == 2,
    }


def of_cost() -> dict[str, bool]:
    mixtral, mamba = find_model("mixtral-8x7b"), find_model("blackmamba-2.8b")
    largest = {one.gpu: one.largest_batch for one in xia2024.largest_batches()}
    loads = [[float(row[f"expert_{n}"]) for n in range(8)] for row in xia2024.rows("expert_load_mixtral.csv")]
    return {
        "an eighth": mixtral.experts == 8,
        "gets twice its share": all(8 * max(load) < 2 * sum(load) for load in loads),
        "a twelfth of that": round(mamba.trainable / mixtral.trainable) == 12,
        "the first eight GB bring two sequences": largest["A40-48GB"] - largest["A100-40GB"] == 2,
        "the next 32 bring nineteen": largest["A100-80GB"] - largest["A40-48GB"] == 19,
    }


CLAIMS = {
    "00_start_here": of_start_here,
    "01_tensor_compression": of_compression,
    "02_contraction_flow": of_contraction,
    "03_train_on_the_u50": of_training,
    "04_memory_and_energy": of_energy,
    "05_design_space": of_design,
    "06_efficient_training": of_methods,
    "07_what_would_it_cost": of_cost,
    "08_your_own_model": dict,
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_number_in_words_holds(name):
    text, claims = " ".join(prose(name).split()), CLAIMS[name]()
    assert [words for words, holds in claims.items() if not holds] == []
    assert [words for words in claims if words not in text] == [], "words that the prose no longer has"
