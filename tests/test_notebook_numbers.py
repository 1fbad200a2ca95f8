"""A number in the notebooks' prose is an input, or it is what the library says; other numbers are printed by cells."""

import ast
import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from bttlab.baseline.gpus import find_gpu
from bttlab.baseline.receipt import details_of
from bttlab.card.layer import layer_program
from bttlab.card.processor import sample_dtype
from bttlab.compiler.program import LANES, compile
from bttlab.data import Samples, load_corpus
from bttlab.data.epoch import EPOCH_SAMPLES
from bttlab.estimate.card import CLOCKS, estimate
from bttlab.estimate.constants import read_data
from bttlab.estimate.gpu import model_step, typical_sample
from bttlab.estimate.resources import budget
from bttlab.lab import Design, flow_cycles, truncate
from bttlab.lab.comparison import RECORD, clearly, energy_to_quality
from bttlab.lab.dashboard_runs import GOOD_SAMPLES
from bttlab.lab.dashboard_targets import BASELINES
from bttlab.model import ModelConfig, initial_parameters
from bttlab.tensor import FLOWS, TTLinear, flow_cost, optimal_cost, order_cost
from bttlab.tensor.shapes import tt_shapes
from bttlab_cost import xia2024
from bttlab_cost.models import find_model
from bttlab_methods.library.experts import MixtureOfExperts
from bttlab_methods.record import by_methods, mean, read_records

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
ENERGY = (FOLDER.parent / "docs" / "energy.md").read_text(encoding="utf-8").partition("## Against a CPU core")[2]
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
    "02_contraction_flow": "13 3.21 3.58 4.56 4.63",  # the peaks are computed by test_the_peaks_that_notebook_02_tells
    "03_train_on_the_u50": "0 1 2 3 8 320",
    "04_memory_and_energy": "0 1 2 14 80",
    "05_design_space": "0 1 1.5 2 4 50 70 100 150 200",
    "06_efficient_training": "10",
    "07_what_would_it_cost": "1 2 2.8 2.9 3 3.9 10 13 17 32 45 48 174 512",
    "08_your_own_model": "4 12 13 20 64",
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_number_in_the_prose_is_known(name):
    known = from_library().get(name, set()) | set(INPUTS[name].split())
    found = set(NUMBER.findall(prose(name)))
    assert found - known == set(), "print it in a cell, or say in this test where it comes from"
    assert set(INPUTS[name].split()) <= found, "an input that the prose no longer has"


# What a cell prints of its own text: inputs, and what the library or a publication says.
PRINTED = {
    "01_tensor_compression": {"1", "4", "7", "33", "417", "500"},
    "02_contraction_flow": {str(CONFIG.sequence_length)},
    "03_train_on_the_u50": {"1", "2"},
    "04_memory_and_energy": {"2", *from_library()["04_memory_and_energy"]},
    "07_what_would_it_cost": {"4.9", "17"},
    "08_your_own_model": {str(CLOCKS[0])},
}


def printed(name: str) -> set[str]:
    """The numbers in the texts that cells print; what stands in braces is computed."""
    texts = []
    for cell in json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            lines = [line for line in "".join(cell["source"]).split("\n") if not line.startswith(("%", "!"))]
            calls = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.Call)]
            texts += [text for call in calls if getattr(call.func, "id", "") == "print" for text in _texts(call)]
    for pattern in (*LEFT_OUT, r"RTX 3090|FP32"):
        texts = [re.sub(pattern, " ", text) for text in texts]
    return {number for text in texts for number in NUMBER.findall(text)}


def _texts(node: ast.AST) -> list[str]:
    """The literal texts in a call; not how a value is formatted."""
    if isinstance(node, ast.FormattedValue):
        return _texts(node.value)
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    return [text for child in ast.iter_child_nodes(node) for text in _texts(child)]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_number_that_a_cell_prints_is_computed_or_known(name):
    found, known = printed(name), PRINTED.get(name, set())
    assert found == known, "print what a receipt or the library says, or say in this test where it comes from"


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
    ways = details_of(RECORD)["ways"]
    sample = typical_sample(AIRLINE, CONFIG)
    alike = Samples(*(np.repeat(getattr(sample, one.name), 16, axis=0) for one in fields(sample)))
    found = energy_to_quality(find_gpu("RTX-3090"), alike)
    card = next(way for way in found if not way.mode)
    over_card = {(way.format, way.batch, way.mode): way.over(card) for way in found if way.mode}
    same = [clearly(ratio) for (kind, batch, _), ratio in over_card.items() if (kind, batch) == ("tensor", 1)]
    others = {way: ratio for way, ratio in over_card.items() if way[:2] != ("tensor", 1)}
    batches = {way["batch"] for way in ways} == {1, 16}
    return {
        "idles at half of its power": 0.45 < idle() < 0.6,
        "more than half of the card's power": idle() > 0.5,
        "ten seeds each": {len(way["samples"]) for way in ways} == {10},
        "train on sixteen utterances": batches,
        "in batches of sixteen": batches,
        "does sixteen utterances": batches,
        "*clearly more* energy than the card for the same tensor training": same == 2 * ["clearly more"],
        "the bands have 1 in them": all(low < 1 < high for low, _, high in others.values()),
        "dense training in batches of sixteen takes less than the card": all(
            ratio[1] < 1 for (kind, batch, _), ratio in others.items() if (kind, batch) == ("dense", 16)
        ),
        "One core of a busy server may take less than the card": float(
            re.search(r"a core takes [\d.]+ times \(([\d.]+) to ", ENERGY)[1]
        )
        < 1,
    }


def of_design() -> dict[str, bool]:
    shares, taken = Design(2, 12).estimate({13: 1}).work.shares, estimate(CONFIG).resources
    widest = max(found.high / found.low for found in map(taken.total, ("lookup_tables", "flip_flops", "dsps")))
    return {
        "busy for three quarters of the time": {round(4 * shares[name]) for name in ("engine 0", "engine 1")} == {3},
        "above 70 %, as at the upper end of the LUTs": taken.utilisation("lookup_tables")
        < 0.7
        < taken.total("lookup_tables").high / budget("lookup_tables"),
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
        "the best of the dense model's, by more than two points": 0.02
        < min(one.scores["test"]["slot_f1"] for one in tensor["tensor+stacking"])
        - max(one.scores["test"]["slot_f1"] for one in dense)
        < 0.03,
        "holds four times as many numbers there": MixtureOfExperts().experts == 4 * MixtureOfExperts().active,
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


def of_own_model() -> dict[str, bool]:
    """Slot F1 of words and of subwords: means over the seeds of the best epochs."""
    runs = details_of(FOLDER.parent / "data" / "subwords.json")["runs"]
    best = {
        kind: np.mean([max(e["slot_f1"] for e in run["epochs"]) for run in runs if run["tokenizer"] == kind])
        for kind in {run["tokenizer"] for run in runs}
    }
    seeds = {kind: {run["seed"] for run in runs if run["tokenizer"] == kind} for kind in best}
    return {
        "with three seeds, at equal epochs": all(len(each) == 3 for each in seeds.values())
        and len({len(run["epochs"]) for run in runs}) == 1,
        "subwords are within half a point of whole words": abs(best["words"] - best["1400 pieces"]) < 0.005,
        "With fewer pieces they are less than a point below": 0 < best["words"] - best["800 pieces"] < 0.01,
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
    "08_your_own_model": of_own_model,
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_number_in_words_holds(name):
    text, claims = " ".join(prose(name).split()), CLAIMS[name]()
    assert [words for words, holds in claims.items() if not holds] == []
    assert [words for words in claims if words not in text] == [], "words that the prose no longer has"
