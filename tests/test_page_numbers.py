"""A number that a page of docs/ has in its prose is what a record or the library says, as the tables beside it.

The tables are made by tools; notebooks are in `test_notebook_numbers`.
"""

import contextlib
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import mean

import accuracy
import card_pages
import numpy as np
import pytest

from bttlab.baseline import load_records
from bttlab.baseline.gpus import find_gpu
from bttlab.baseline.receipt import details_of
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.program import compile
from bttlab.data import Vocabulary, load_corpus
from bttlab.estimate.card import estimate
from bttlab.estimate.gpu import batch_figures, known_kernels
from bttlab.estimate.recorded import machine_record
from bttlab.estimate.synthesis import IN_LUTS, synthesised, with_own_cores, with_packed_multipliers
from bttlab.model import ModelConfig
from bttlab.model.choices import TYPICAL_TOKENS
from bttlab_cost import others, xia2024
from bttlab_cost.calibration import errors_of, errors_of_equation_2, predict, read_calibration
from bttlab_cost.estimate import Estimator
from bttlab_cost.fitting import errors_of_several_gpus
from bttlab_cost.models import find_model
from bttlab_cost.operators import operators
from bttlab_methods.record import by_methods, read_records
from bttlab_methods.record import mean as mean_of

from conftest import ROOT

ACCURACY = ROOT / "data" / "accuracy"


def page(name: str) -> str:
    return " ".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").split())


# --- accuracy.md


def scores(record: str, **of: object) -> dict[str, float]:
    """Mean scores of the runs of a record, per cent, by split and score."""
    runs = [run for run in details_of(ACCURACY / f"{record}.json")["runs"] if all(run[key] == of[key] for key in of)]
    names = ("intent_accuracy", "slot_f1", "frame_accuracy")
    test = {f"test {name}": mean(100 * run["test"][name] for run in runs) for name in names}
    return test | {f"dev {name}": mean(100 * run["epochs"][-1]["dev"][name] for run in runs) for name in names}


def of_accuracy() -> dict[str, bool]:
    two, four, six = (scores("atis", format="tensor", recipe="atis", encoders=n) for n in (2, 4, 6))
    long = scores("atis", recipe="atis_long")
    tensor, dense = (scores("atis_48", format=kind) for kind in ("tensor", "dense"))
    frames = "test frame_accuracy"
    parts = {
        "value of the same type makes a new sentence | 75.9": "no_substitution",
        "say more than `[UNK]` | 77.9": "no_classes",
        "never occur in training otherwise | 79.2": "no_dropout",
        "would become too sure of them | 79.3": "no_smoothing",
        "With all parts it is 79.8 %": "full",
        "(beta2 0.999) it is 74.5 %": "plain",
    }
    folds = {
        "| none | 77.6 |": "snips24",
        "| word dropout 1 / (1 + n) | 77.6 |": "word_dropout_1",
        "| a tenth of all words dropped | 75.9 |": "uniform_word_dropout_0.1",
        "| 96 epochs | 77.2 |": "snips96",
        "| rank 6 | 75.2 |": "rank_6",
    }
    found = {
        text: float(text.split("|" if "|" in text else " is ")[-1].rstrip(" %"))
        == round(scores("atis_ablation", recipe=recipe)[frames], 1)
        for text, recipe in parts.items()
    }
    held_out = {run["recipe"]: run["epochs"][-1] for run in details_of(ACCURACY / "snips_folds.json")["runs"]}
    found |= {
        text: float(text.split("|")[-2]) == round(100 * held_out[recipe]["dev"]["frame_accuracy"], 1)
        for text, recipe in folds.items()
    }
    return found | {
        "4 encoders score 0.9 points more": round(four[frames] - two[frames], 1) == 0.9,
        "6 encoders score 0.3 points more": round(six[frames] - two[frames], 1) == 0.3,
        "Its frame accuracy is 0.7 points lower there": round(tensor[frames] - dense[frames], 1) == 0.7,
        "On dev its slot F1 and its frame accuracy are 0.3 points higher": {
            round(dense[f"dev {name}"] - tensor[f"dev {name}"], 1) for name in ("slot_f1", "frame_accuracy")
        }
        == {0.3},
        "30 of the 893 intents of test are wrong on average": round(8.93 * (100 - long["test intent_accuracy"])) == 30,
    }


# --- methods.md


def of_methods() -> dict[str, bool]:
    records = read_records()
    half, two = by_methods(records["atis.json"]), by_methods(records["atis_tensor.json"])

    def peak(runs) -> float:
        return mean_of(runs, lambda one: one.memory["peak"]["value"])

    def seconds(runs) -> float:
        return mean_of(runs, lambda one: one.seconds_per_epoch["value"])

    def points(runs) -> float:
        return 100 * mean_of(runs, lambda one: one.scores["test"]["slot_f1"])

    def better(runs, than) -> bool:
        """Whether slot F1 is higher with each seed."""
        of = [{one.seed: one.scores["test"]["slot_f1"] for one in each} for each in (runs, than)]
        return all(of[0][seed] > of[1][seed] for seed in of[1])

    dense, tensor = half["dense"], two["tensor"]
    more_time = {seconds(half[name]) / seconds(dense) - 1 for name in ("rematerialisation", "compressed-activations")}
    cores = [one.facts["numbers_in_cores"] / one.facts["numbers_in_cores_at_start"] for one in two["rank-pruning"]]
    rows = {
        "data-parallel": "| `data-parallel` | 537 and 537 | 1,074 and 1,074 | 537 | {:.1f} |",
        "zero": "| 269 and 269 | 537 and 537 | 638 | {:.1f} |",
        "tensor-parallel": "| 438 and 438 | 876 and 876 | 212 | {:.1f} |",
        "pipeline-parallel": "| 366 and 172 | 731 and 343 | 20 | {:.1f} |",
        "dense": "for which one process alone takes {:.1f} MB",
    }
    two_processes = details_of(ROOT / "data" / "methods" / "airline_processes.json")
    peaks = {one["methods"]: one["memory"]["peak"]["value"] / 1e6 for one in two_processes}
    return {row.format(peaks[name]): True for name, row in rows.items()} | {
        "finds three points more of slot F1, better with each seed": round(
            points(half["sparse-attention"]) - points(dense)
        )
        == 3
        and better(half["sparse-attention"], dense),
        "that training, 43 s on the airline corpus": round(half["lora"][0].facts["pretraining_seconds"]) == 43,
        "momentum and the 8-bit optimizer bring the peak to three quarters, GaLore to 0.6": [
            round(peak(half[name]) / peak(dense), digits)
            for name, digits in (("momentum", 2), ("8bit-optimizer", 2), ("galore", 1))
        ]
        == [0.75, 0.74, 0.6],
        "optimizer takes three and a half times as long": 3.4 < seconds(half["8bit-optimizer"]) / seconds(dense) < 3.7,
        "momentum loses eight points of slot F1": round(points(dense) - points(half["momentum"])) == 8,
        "an epoch takes twelve times as long": round(seconds(half["fp16"]) / seconds(dense)) == 12,
        "for 30 to 40 % more time": min(more_time) > 0.3 and max(more_time) < 0.4,
        "**Tensors** take a quarter of the memory and a quarter of the time": [
            round(4 * of(half["tensor"]) / of(dense), 1) for of in (peak, seconds)
        ]
        == [1, 1],
        "a peak 5.4 times less than the dense model's": round(peak(dense) / peak(two["tensor+rematerialisation"]), 1)
        == 5.4,
        "Stacking gives the best slots, with each seed": better(two["tensor+stacking"], tensor)
        and max(two, key=lambda name: points(two[name])) == "tensor+stacking",
        "Quantised cores cost nothing with 8 bits and three points of slot F1 with 4": points(two["tensor-int8"])
        >= points(tensor)
        and round(points(tensor) - points(two["tensor-int4"])) == 3,
        "cuts down to half the cores' numbers for 1.5 points of slot F1": round(mean(cores), 1) == 0.5
        and round(points(tensor) - points(two["rank-pruning"]), 1) == 1.5,
    }


# --- energy.md


def of_energy() -> dict[str, bool]:
    measured = [one for one in load_records(card_pages.BASELINES) if one.machine.kind == "cuda"]
    of = {(one.format, one.config["encoders"], one.batch, one.machine.precision): one for one in measured}
    full = [one for one in measured if one.machine.precision == "highest"]
    gpu = find_gpu("H100")
    outside: dict[str, list[tuple[str, int, float]]] = {"times": [], "energies": []}
    for one in full:
        config, samples = ModelConfig(**one.config), card_pages.samples_of(TYPICAL_TOKENS)[: one.batch]
        for mode, done in one.modes.items():
            bands = batch_figures(gpu, one.format, mode, config, samples)
            for name, value, band in zip(outside, (done.median, done.energy.per_step), bands, strict=True):
                each = value.value / one.batch
                if not band[0] <= each <= band[2]:
                    outside[name].append((mode, one.batch, each / band[2]))
    tensor = [one for one in full if one.format != "dense" and one.batch == 1]
    watts = [done.energy.per_step.value / done.mean.value for one in tensor for done in one.modes.values()]
    sample = card_pages.samples_of(TYPICAL_TOKENS)[:1]
    kernels = {
        kind: sum(kernel.launches for kernel in known_kernels(kind, ModelConfig(), sample)[0])
        for kind in ("dense", "tt", "btt")
    }
    each = [1e6 * of[kind, 2, 1, "highest"].modes["eager"].median.value / kernels[kind] for kind in kernels]

    def tf32(kind: str, batch: int) -> list[float]:
        pairs = [
            [of[kind, n, batch, precision].modes["graphs"] for precision in ("high", "highest")] for n in (2, 4, 6)
        ]
        return [fast.median.value / slow.median.value for fast, slow in pairs]

    return {
        "132 dense, 407 TT, 357 BTT with 2 encoders": list(kernels.values()) == [132, 407, 357],
        "30 to 46 µs per kernel on this host": [round(min(each)), round(max(each))] == [30, 46],
        "All 36 energies of 2, 4 and 6 encoders lie in their bands": 2 * len(full) == 36 and not outside["energies"],
        "So do all times but eight, of batches of 16 in CUDA graphs, which are up to 20 % above them": [
            (mode, batch) for mode, batch, _ in outside["times"]
        ]
        == 8 * [("graphs", 16)]
        and round(max(over for *_, over in outside["times"]), 2) == 1.2,
        "clocks up, 127 W: no FP32 step of tensor training at batch 1 added 20 W": gpu.awake_w[1] == 127
        and max(watts) < 127 + 20,
        "TF32 takes about half of FP32's time for TT and BTT in graphs": all(
            0.4 < share < 0.62 for kind in ("tt", "btt") for batch in (1, 16) for share in tf32(kind, batch)
        ),
        "for dense training 0.9 of it at batch 1, 0.6 in batches of 16": [
            {round(share, 1) for share in tf32("dense", batch)} for batch in (1, 16)
        ]
        == [{0.9}, {0.6}],
    }


# --- cost.md


def of_cost() -> dict[str, bool]:
    calibration, estimator = read_calibration(), Estimator()
    rows = {
        "the 77 throughputs of the fit": calibration.errors["fitted"],
        "one GPU left out": calibration.errors["one GPU left out"],
        "one model and data set left out": calibration.errors["one model and data set left out"],
        "one model left out, with both data sets": calibration.errors["one model left out"],
        "FlashAttention: the three projects of the fit": calibration.errors["FlashAttention, fitted"],
        "one of these left out": calibration.errors["FlashAttention, one project left out"],
        "six projects held out": calibration.errors["FlashAttention, projects held out"],
        "H100, held out": errors_of((point, calibration.time) for point in xia2024.throughputs("throughput_h100.csv")),
        "published equation 2 (`bttlab_cost/xia2024.py`), each curve on its own points": errors_of_equation_2(),
    }
    found = {
        f"| {name} | {one.points} | {one.median:.1%} | {one.nine_of_ten:.1%} | {one.bias:+.1%} |".replace("%", " %")
        .replace("+0.0", "0.0")
        .replace("-0.0", "0.0"): True
        for name, one in rows.items()
    }
    time, low, high, flash = calibration.time, calibration.low, calibration.high, calibration.flash
    for name, unit, digits in (("arithmetic", "", 2), ("bandwidth", "", 2), ("passes", "", 2), ("tail", " tokens", 0)):
        texts = [f"{getattr(one, name):.{digits}f}" for one in (time, low, high)]
        found[f"| {name} | {texts[0]}{unit} | {texts[1]} to {texts[2]} |"] = True
    several = errors_of_several_gpus(calibration)
    own = next(one for one in others.projects() if one.project == "gpu-record-cuda")
    (point,), (peak,) = own.throughputs, own.peaks

    def inside(points) -> tuple[int, int]:
        bands = [estimator.sequences_per_second(one.config, find_gpu(one.gpu), one.batch) for one in points]
        held = [low <= one.sequences_per_second <= high for one, (low, _, high) in zip(points, bands, strict=True)]
        return sum(held), len(held)

    def scores_of(name: str) -> list[float]:
        """Operations of attention's scores, forward and backward, over the products that a causal mask leaves."""
        config = find_model(name)
        mixers = [one for one in operators(config, 1024) if one.kind == "mixer" and one.elementwise]
        left = 2 * (2 * 1024 * config.sequence_length * config.hidden) / 2  # of two products
        return [one.flops / left for one in (mixers[0], mixers[-1])]

    small, large = (float(np.exp(getattr(calibration, name))) for name in ("memory_spread", "flash_memory_spread"))
    return found | {
        "It took 96 ms, in which the model gets 28 % less done": round(1e3 * point.batch / point.sequences_per_second)
        == 96
        and round(100 * (1 - predict(point, flash) / point.sequences_per_second)) == 28,
        "Its memory is 4 % above the model's": round(100 / peak.ratio(calibration.flash_memory) - 100) == 4,
        "twice the products that a causal mask leaves forward. Backward it is four times as many, and five with "
        "FlashAttention": scores_of("llama-2-7b,kernels=eager") == [2, 4] and scores_of("llama-2-7b") == [2, 5],
        "The median error is 10 %; nine of ten stay below 26 %": (
            several.points,
            round(100 * several.median),
            round(100 * several.nine_of_ten),
        )
        == (22, 10, 26),
        "36 of the 38 held-out points of FlashAttention are in the band, and 17 of the H100's 19": [
            inside([point for one in others.projects() if not one.fitted for point in one.throughputs]),
            inside(xia2024.throughputs("throughput_h100.csv")),
        ]
        == [(36, 38), (17, 19)],
        "a factor of 1.35 where the GPU sets the time, up to 2.8 where the host does": [
            round(float(np.exp(calibration.flash_spread.gpu)), 2),
            round(float(np.exp(calibration.flash_spread.host)), 1),
        ]
        == [1.35, 2.8],
        "within a factor of 1.40 of the model": round(large, 2) == 1.4,
        "Eager runs of the models of Xia et al. have 1.06": round(small, 2) == 1.06,
    }


# --- tensor.md, accelerator.md


def of_tensor() -> dict[str, bool]:
    vectors = M.banks[M.IN_BANK].depth
    places = [min(M.SEQUENCE, vectors // (features // M.LANES)) for features in (128, 256, 384, 768)]
    record = 4 * M.LANES * (1 + (M.OFFSET_TABLES + 1) * M.SEQUENCE // M.LANES)
    return {
        "{} vectors: {} tokens of 128 features, {} of 256, {} of 384, {} of 768".format(vectors, *places): True,
        f"Per sample, {record:,} bytes come from HBM and {4 * (M.LANES + M.SEQUENCE)} bytes of results go there": True,
        f"a record has room for {M.SEQUENCE - 1} labels": True,
    }


def of_accelerator() -> dict[str, bool]:
    modules = synthesised()
    ours = [with_own_cores(modules), with_own_cores(with_packed_multipliers(modules))]
    tables, flip_flops = ([sum(one[name] for name in names) for one in ours] for names in (IN_LUTS, ["flip_flops"]))
    rounded = [f"{round(min(counts), -3):,} to {round(max(counts), -3):,}" for counts in (tables, flip_flops)]
    return {
        f"{machine_record(200).depth} cycles deep (LATENCY: {M.LATENCY})": True,
        f"The pipeline is {machine_record(300).depth} cycles deep then (LATENCY: 152)": True,
        f"the loop with them takes {rounded[0]} LUTs and {rounded[1]} flip-flops": True,
    }


PAGES = {
    "accelerator": of_accelerator,
    "accuracy": of_accuracy,
    "cost": of_cost,
    "energy": of_energy,
    "methods": of_methods,
    "tensor": of_tensor,
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "energy" else name for name in PAGES]
)
def test_every_number_in_prose_holds(name):
    text, claims = page(name), PAGES[name]()
    assert [words for words, holds in claims.items() if not holds] == []
    assert [words for words in claims if words not in text] == [], "what records say, and the page does not"


def test_the_tables_of_accuracies_are_those_of_the_records():
    text = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for name in ("atis", "atis_48", "atis_folds", "learning", "snips_decoded"):
        for line in accuracy.table(details_of(ACCURACY / f"{name}.json")).splitlines():
            assert line in text, name
    published = json.loads((ROOT / "data" / "published_scores.json").read_text(encoding="utf-8"))["models"]
    for line in accuracy.published_table(published).splitlines():
        assert line in text


@pytest.mark.long
def test_sentences_of_atis_are_counted(atis):
    corpus, text = load_corpus(atis), page("accuracy")
    known = {word for words in corpus.train.words for word in words}
    unknown = [word for words in corpus.test.words for word in words if word not in known]
    assert f"52 of the {len(unknown)} unknown words of ATIS's test split" in text
    missing = [intent for intent in corpus.test.intents if intent not in set(corpus.train.intents)]
    assert len(missing) == 5 and "Five of these 18 intents do not occur in the training split" in text

    def asking(split) -> Counter[str]:
        pairs = zip(split.words, split.intents, strict=True)
        return Counter(i for words, i in pairs if ("how", "many") in pairwise(words) and "flights" in words)

    counts = asking(corpus.train)
    assert asking(corpus.test)["atis_flight"] == 4
    said = f"of the {counts.total()} sentences in training with *how many* and *flights*, "
    assert f"Four others ask how many flights there are: {said}{counts.total() - counts['atis_flight']} have" in text


@pytest.mark.long
def test_words_of_snips_are_counted(snips):
    words = load_corpus(snips).train.words
    tokens = len(Vocabulary.from_sentences(words, 20_000, word_classes=True))
    assert f"The vocabulary has {tokens:,} tokens" in page("accuracy")


@pytest.mark.long
def test_encoders_that_have_space_beside_the_vocabulary_of_snips():
    said = "one of 4 or 5 by SGD alone, and one of 6 only with smaller ranks"
    assert f"with the vocabulary of SNIPS a model of 3 encoders trains by AdamW, {said}" in page("accelerator")
    taken = {"sgd": [], "adamw": []}
    for optimizer, encoders in (("adamw", 3), ("adamw", 4), ("sgd", 5), ("sgd", 6)):
        with contextlib.suppress(ProgramError):
            config = ModelConfig(encoders=encoders).with_vocabulary(11_428)
            estimate(config, optimizer=optimizer)
            taken[optimizer].append(encoders)
    assert taken == {"sgd": [5], "adamw": [3]}
    compile(replace(ModelConfig(encoders=6).with_vocabulary(11_428), embedding_rank=24))


@pytest.mark.long
def test_hidden_sizes_are_those_that_the_card_takes():
    taken = "Every multiple of 64 up to 1,024 has modes that the card takes"
    assert f"{taken}, and so have some other multiples of 16, such as 48, 208 and 1,280; 1,088 has not." in page(
        "research"
    )

    def config(size: int) -> ModelConfig:
        small = {"encoders": 1, "linear_rank": 4, "vocabulary_size": 64, "sequence_length": 4}
        return ModelConfig.of_sizes({**small, "hidden_size": size, "heads": size // 16})

    for size in (*range(64, 1025, 64), 48, 208, 1280):
        compile(config(size))
    with pytest.raises(ProgramError, match="column modes are 17, 8, 8"):
        compile(config(1088))
