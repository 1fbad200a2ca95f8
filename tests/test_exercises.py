"""Each exercise takes what is right, however it is written, and nothing that is nearly so, lucky or copied."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch
from tqdm import tqdm

from bttlab.baseline.gpus import find_gpu
from bttlab.baseline.memory import measure_memory
from bttlab.baseline.step import Task
from bttlab.card import EmulatedU50, load_overlay
from bttlab.compiler.program import Options, compile
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace
from bttlab.data import Vocabulary, load_corpus
from bttlab.estimate.card import estimate
from bttlab.lab import Design, Teach, Workload, check, chip_bytes, engine_products, grade
from bttlab.model import ModelConfig, Optimizer, initial_parameters
from bttlab.runs.sweep import SweepSpec
from bttlab.teaching.exercises import EXERCISES, NotRight, flows, show_points
from bttlab.teaching.exercises.check import Verdict
from bttlab.teaching.exercises.design import _scheduled
from bttlab.teaching.exercises.training import _Clockwork
from bttlab.teaching.notebooks import FOLDER
from bttlab.tensor import TTLinear
from bttlab_cost import exercises as exercises_07
from bttlab_cost.estimate import Estimator
from bttlab_cost.models import find_model
from bttlab_methods import exercises as exercises_06
from bttlab_methods.record import read_records

MODES = (12, 8, 8), (8, 8, 12)
CONFIG = ModelConfig()
TWO_MERGED = "R5 = G5 G6\nu = x R5\nz = u G4\nv = z G3\nL2 = G1 G2\ny = v L2"
MIDDLE_FIRST = "a = x G5\nb = a G6\nc = b G4\nd = c G3\ne = d G2\ny = e G1"
COUPLED = "a = G3 G4\nb = a G5\nc = b G6\nd = c x\ne = G2 d\ny = G1 e"  # no engine computes its first step
WHOLE = "L2 = G1 G2\nL3 = L2 G3\nR5 = G5 G6\nR4 = G4 R5\nW = L3 R4\ny = x W"
FEW = 24  # samples of an epoch here


def cut(matrix, rank):
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank], s[:rank, None] * v[:rank]


def bidirectional(x, cores):
    left, right = _halves(cores)
    return x @ right.T @ left.T


def through_the_matrix(x, cores):
    whole = cores[0]
    for core in cores[1:]:
        whole = torch.tensordot(whole, core, 1)
    return x @ whole.reshape(x.shape[1], x.shape[1]).T


def seconds(trainer, sample):
    begin = time.perf_counter()
    trainer.predict(sample[np.zeros(100, int)])
    return (time.perf_counter() - begin) / 100


def peak(lives):
    return max(sum(size for size, made, freed in lives if made <= step < freed) for _, step, _ in lives)


def on_one_engine(products):
    start, found = 0, {}
    for result, (cycles, _) in products.items():
        found[result] = 0, start
        start += cycles
    return found


def without_waiting(products):
    return {result: (k % 2, 0) for k, result in enumerate(products)}


class Objects:
    """Objects that notebooks have made by the time of their exercises."""

    def __init__(self):
        self.corpus = load_corpus("airline")
        self.work = Workload.of(self.corpus, CONFIG)
        self.samples = self.work.train[self.work.order(320)]
        self.lengths = Counter(self.work.train.lengths.tolist())
        self.cards = {n: estimate(ModelConfig(encoders=n), self.lengths, "adamw") for n in (2, 4)}
        self.start = initial_parameters(CONFIG, seed=0)
        self.overlay = load_overlay("trainer", EmulatedU50())
        self.trainer = self.overlay.trainer_1
        self.trainer.load_program(CONFIG)
        self.layer = TTLinear(768, 768, *MODES, 12)
        self.x, self.dy = torch.randn(13, 768), torch.randn(13, 768)
        self.recorded = read_records()["atis.json"]
        self.estimator = Estimator()
        self.mixtral = find_model("mixtral-8x7b")
        self.llama = find_model("llama-2-7b,method=qlora")

    def losses(self, rate=4e-2, optimizer="sgd", count=300):
        self.trainer.load_program(CONFIG)
        self.trainer.load_parameters(self.start)
        return self.trainer.train(self.samples[:count], Optimizer(optimizer), rate)

    def measured(self, which):
        sample = self.work.train[int(which(self.work.train.lengths))]
        task = Task(ModelConfig(format="dense"), "dense", sample, 4e-3, seed=0, device="cpu")
        return measure_memory(task).peak.value / 1e6


@pytest.fixture(scope="module")
def objects():
    torch.manual_seed(0)
    return Objects()


def _judge(name, answer, *given) -> str:
    """What is wrong with an answer; nothing if it is right."""
    try:
        grade(name, answer, *given)
    except NotRight as error:
        return str(error)
    return ""


def _try(name, given, right, wrong):
    """Hidden tests take the right answers and none of the wrong ones; what they say differs by what is wrong."""
    assert [_judge(name, answer, *given) for answer in right] == [""] * len(right), name
    said = [_judge(name, answer, *given) for answer in wrong]
    assert all(said), f"{name} takes {[answer for answer, why in zip(wrong, said, strict=True) if not why]}"
    done = [why for why in said if not why.startswith("Not done yet")]
    assert all(re.match(r"(?s)Not yet: .{10}.*\. Hint: .{10}", why) for why in done), done
    found = [why.partition(". Hint: ")[0] for why in done]
    assert len(found) == 1 or len(set(found)) > 1, found


@pytest.mark.long
def test_00(objects):
    fast, usual = objects.losses(), objects.losses(4e-3)
    given = objects.trainer, objects.samples, CONFIG
    nearly = fast.copy()
    nearly[3] *= 1 + 1e-6
    right = [(letter, fast) for letter in ("b", "(b)", "B", " b ", "b)", "(B).")]
    wrong = [("b", usual), ("a", fast), ("c", fast), ("bb", fast), ("ab", fast), ("", fast), (2, fast), ("b", None)]
    _try("00.1", given, right, [*wrong, ("b", nearly), ("b", fast[:299]), ("b", [9.0] * 300), "b", (None, fast), ()])
    wrong = [7.9, 7.89, np.log(22), np.log(144), np.log2(22 * 122), "7.895", True, np.nan, None]
    _try("00.2", (CONFIG,), [np.log(22) + np.log(122), 7.895, np.float32(7.8951)], wrong)


def test_01(objects):
    _try("01.1", (), [1296, 1296.0, np.int64(1296)], [1296.9, 1295, 4896, 2448, 1224, 648, "1296", None, [1296]])
    fine = [((12, 4, 4, 4), (4, 4, 4, 12)), ([6, 8, 4, 4], [4, 4, 8, 6])]
    others = [MODES, ((12, 8), (8, 12)), ((2, 2), (2, 2)), ((768,), (768,)), (12, 8, 8), ((0, 1), (1, 0)), "modes"]
    _try("01.2", (), fine, [*others, ((12, 4, 4, 4), (8, 8, 12, 2)), ((-12, -4, 4, 4), (4, 4, 4, 12))])
    trained = torch.from_numpy(initial_parameters(ModelConfig(format="dense"), seed=0)["encoders.1.first.weight"])
    _try("01.3", (trained,), [372, np.ceil(371.5)], [371, 373, 384, 0, -1, 372.5, "372", None])

    def swapped(matrix, rank):
        left, rest = cut(matrix, rank)
        return rest.T, left.T

    def loose(matrix, rank):
        left, rest = cut(matrix, rank)
        return 2 * left, rest / 2

    def emptied(matrix, rank):
        matrix.zero_()
        return cut(matrix, rank)

    _try("01.4", (), [cut], [emptied, swapped, loose, lambda m, r: cut(m, 4), lambda m, r: None, lambda m: m, None])


@pytest.mark.long
def test_02(objects):
    found = [t for t in range(1, 40) if not _judge("02.1", t)]
    assert len(found) == 1
    _try("02.1", (), [*found, float(found[0])], [0, -3, 12, 32, found[0] + 0.5, str(found[0]), None])
    _try("02.2", (), [-9216], [9216, "less", "more", "same", 829_440, 838_656, 0, None])
    right_to_left = "a = x G6\nb = a G5\nc = b G4\nd = c G3\ne = d G2\ny = e G1"
    given = objects.overlay, objects.layer, objects.x, objects.dy
    wrong = ["auto", (2, 2), "bidirectional", right_to_left, MIDDLE_FIRST, WHOLE, flows.MY_FLOW, "y = x", None]
    _try("02.3", given, [TWO_MERGED], wrong)
    _try("02.4", (objects.layer,), [MIDDLE_FIRST, COUPLED], [TWO_MERGED, WHOLE, right_to_left, "y = x G1", "", 5, None])

    def by_sums(x, cores):
        return (x[:, None] * torch.tensordot(*_halves(cores), 1)).sum(-1)

    def emptied(x, cores):
        y = bidirectional(x, cores)
        x.zero_()
        return 0 * y

    wrong = [emptied, by_sums, through_the_matrix, lambda x, cores: x, lambda x, cores: None, None]
    _try("02.5", (), [bidirectional], wrong)


def _halves(cores):
    left, right = cores[0], cores[-1]
    for core in cores[1 : len(cores) // 2]:
        left = torch.tensordot(left, core, 1)
    for core in reversed(cores[len(cores) // 2 : -1]):
        right = torch.tensordot(core, right, 1)
    return left.flatten(0, -2), right.flatten(1)


def test_03(objects):
    size = 2 * CONFIG.parameters_bytes
    _try("03.1", (CONFIG,), [size, float(size)], [size + 0.5, size // 2, size // 8, size / 1e6, str(size), None])

    def in_all(trainer, sample):
        return 100 * seconds(trainer, sample)

    def by_tokens(trainer, sample):
        return 1e-4 * sample.lengths[0]

    objects.losses(count=FEW)  # the model is on the card, as it is when a student comes here
    given = objects.trainer, objects.work.train

    def by_another_name(trainer, sample):
        begin = perf_counter()
        trainer.predict(sample[np.zeros(100, int)])
        return (perf_counter() - begin) / 100

    def in_nanoseconds(trainer, sample):
        begin = time.perf_counter_ns()
        trainer.predict(sample[np.zeros(100, int)])
        return (time.perf_counter_ns() - begin) / 100e9

    _try(
        "03.2",
        given,
        [seconds, by_another_name, in_nanoseconds],
        [in_all, by_tokens, lambda t, s: 2, lambda t, s: None, 2, 2.3, "2", None],
    )
    assert perf_counter is time.perf_counter  # the clock is only exchanged while a function is tried
    assert "does not read time.perf_counter()" in _judge("03.2", lambda trainer, sample: 1e-3, *given)
    few = objects.samples[:FEW]
    adamw, sgd, rate = objects.losses(3e-4, "adamw", FEW), objects.losses(4e-3, "sgd", FEW), 0.7
    other_rate = objects.losses(1e-3, "adamw", FEW)
    made_up = np.concatenate([adamw[:3], np.full(FEW - 3, rate, np.float32)])
    rising, broken = adamw.copy(), adamw.copy()
    rising[20:], broken[-1] = 1000, np.nan
    wrong = [sgd, other_rate, made_up, rising, broken, adamw[:-1], rate, float(adamw.mean()), None]
    _try("03.3", (objects.trainer, few, objects.start, sgd), [adamw], wrong)


def test_03_another_thread_reads_the_real_clock():
    """A training in the background measures its time while a function is judged by a clock that is set."""
    seen = []

    def judged(trainer):
        trainer.now += 1e6
        thread = threading.Thread(target=lambda: seen.append(time.perf_counter()))
        thread.start()
        thread.join()
        return time.perf_counter()

    before = time.perf_counter()
    found = _Clockwork().measured(judged)
    assert found > before + 1e5 and before <= seen[0] <= time.perf_counter()


@pytest.mark.long
def test_03_teach(objects):
    """Three sentences among old ones, without them, too few, one of the train split, and not learned."""
    objects.trainer.load_program(CONFIG)
    objects.trainer.load_parameters(objects.start)
    objects.trainer.train(objects.work.train[objects.work.order(1500)], Optimizer("sgd"), 4e-3)
    trained = objects.trainer.store_parameters()
    corpus = replace(objects.corpus, dev=objects.corpus.dev[:150])
    vocabulary = Vocabulary.from_sentences(corpus.train.words, CONFIG.vocabulary_size)
    cities = {"take me home to pittsburgh": "pittsburgh", "carry me to boston": "boston", "off to denver": "denver"}

    def taught(steps=8, old=8, count=3, first="flight to dallas"):
        trainer = load_overlay("trainer", EmulatedU50()).trainer_1
        trainer.load_program(CONFIG)
        trainer.load_parameters(trained)
        teach = Teach(trainer, corpus, vocabulary)
        for sentence in list(cities)[:count]:
            teach.ask(sentence)
            teach.correct_intent("atis_meal" if old == 0 else "atis_flight")
            for place, word in enumerate(teach.answer.words):
                teach.correct(place, "toloc.city_name" if word == cities[sentence] else "O")
            teach.train(steps=steps, old=old)
        return teach

    known, unlearned = taught(old=16), taught(old=16)
    known.taught.words[0] = corpus.train.words[0]
    unlearned.trainer.load_parameters(trained)
    wrong = [taught(old=0), taught(count=2), known, unlearned, taught(count=0), None]
    _try("03.4", (trained,), [taught(old=16)], wrong)


def test_04(objects):
    two, four = objects.cards[2], objects.cards[4]
    held = chip_bytes(two)["optimizer state"] / 1e6
    _try("04.1", (two,), [held, round(held, 3)], [1.01 * held, 0.99 * held, 1e6 * held, held / 2, str(held), None])
    ratio = (chip_bytes(four)["activations"] - chip_bytes(two)["activations"]) / (
        chip_bytes(four)["parameters"] - chip_bytes(two)["parameters"]
    )
    _try("04.2", (two, four), [ratio], [1.01 * ratio, ratio + 0.09, 1 / ratio, 2 * ratio, 0, "more", None])
    least, most = objects.measured(np.argmin), objects.measured(np.argmax)
    _try("04.3", (objects.work.train,), [least], [most, 2 * 36.7, 73.4, 1.005 * least, 1e6 * least, "least", None])

    def with_the_freed(lives):
        return max(sum(size for size, made, freed in lives if made <= step <= freed) for _, step, _ in lives)

    def after_the_first_step(lives):
        steps = range(1, max(freed for *_, freed in lives))
        return max(sum(size for size, made, freed in lives if made <= step < freed) for step in steps)

    wrong = [
        with_the_freed,
        after_the_first_step,
        lambda lives: sum(size for size, *_ in lives),
        lambda lives: 14,
        lambda lives: None,
        14,
    ]
    _try("04.4", (), [peak], wrong)


@pytest.mark.long
def test_05(objects):
    lengths = Counter({13: 3, 20: 1})
    joules = {c: Design(clock_mhz=c).estimate(lengths).energy_per_epoch.value for c in (50, 100, 150, 200)}
    wrong = [{c: j for c, j in joules.items() if c > 50}, {**joules, 100: 1.01 * joules[100]}, {**joules, 250: 1.0}]
    _try("05.1", (lengths,), [joules], [*wrong, 200, joules[200], {}, "200", None])
    (pair,) = [(n, bank) for n in (5, 6, 7) for bank in range(16) if not _judge("05.2", (n, bank))]
    n, bank = pair
    wrong = [(n + 1, bank), (n - 1, bank), (n, bank + 1), (n, 0.5), n, (n,), (n, None), "6"]
    _try("05.2", (), [pair, list(pair), (n, f"bank {bank}")], wrong)
    wrong = [Design(2, 4, "auto"), Design(4, 12, "bidirectional"), Design(4, 12, "auto"), 4, "4", None]
    fast = Design(4, 12, "auto", clock_mhz=300)  # few joules by its clock
    _try("05.3", (lengths,), [Design(4, 4, "auto"), Design(4, 8, "auto", feed_forward=2)], [fast, *wrong])
    fixed = {"data": "airline", "samples": 100}
    spec = SweepSpec("s", {"linear_rank": [8, 12]}, fixed, objective="dev.slot_f1", maximize=True)
    mine = replace(spec, vary={"seed": [1, 0], **spec.vary})
    changes = {"name": "t", "vary": spec.vary, "fixed": {"samples": 50}, "objective": "loss", "maximize": False}
    wrong = [replace(mine, **{name: value}) for name, value in changes.items()]
    others = [replace(spec, vary={**spec.vary, "seed": seeds}) for seeds in ([0, 1, 2], [0, 0, 1])]
    _try("05.4", (spec, [1, 2]), [mine], [*wrong, spec, *others, "spec", None])
    assert "no finished trial" in _judge("05.4", mine, spec, [])

    def on_the_idle_engine(products):
        free, ends, found = [0, 0], {}, {}
        while products:
            result = next(iter(products))
            cycles, reads = products.pop(result)
            engine = free.index(min(free))
            start = max([free[engine], *(ends[name] for name in reads if name in ends)])
            free[engine] = ends[result] = start + cycles
            found[result] = engine, start
        return found

    def emptied(products):
        found = _scheduled(products)
        for result in products:
            products[result] = 0, []
        return {result: (engine, 0) for result, (engine, _) in found.items()}

    wrong = [emptied, on_one_engine, without_waiting, lambda products: {}, lambda products: None, "schedule", None]
    _try(
        "05.5",
        (),
        [_scheduled, on_the_idle_engine],
        [*wrong, lambda products: {r: (2, s) for r, (_, s) in _scheduled(products).items()}],
    )
    assert not _judge("05.5", _scheduled) and len(engine_products("reconstruct", 3)) == 6


def test_06(objects):
    peaks = {
        name: np.mean([r.memory["peak"]["value"] for r in objects.recorded if r.methods == name])
        for name in ("dense", "tensor")
    }
    ratio = peaks["dense"] / peaks["tensor"]
    _try("06.1", (objects.recorded,), [ratio], [ratio + 0.09, 1 / ratio, 30, "ratio", None])
    single = [r for r in objects.recorded if "+" not in r.methods]
    best = min(single, key=lambda r: r.seconds_per_epoch["value"]).methods
    wrong = sorted({r.methods for r in objects.recorded} - {best})
    _try("06.2", (objects.recorded,), [best, f" {best} "], [*wrong, best[:-1], 3, None])
    _try("06.3", (ModelConfig(format="dense"),), [73.43, 73.434], [73, 36.7, 73.6, 73_434_240, 2.4, "73.4", None])


def test_07(objects):
    query = replace(objects.mixtral, sequence_length=174)
    given = objects.estimator, query
    (batch,) = [n for n in range(1, 18) if not _judge("07.1", n, *given)]
    _try("07.1", given, [batch, float(batch)], [batch + 0.5, batch - 0.5, 0, -1, str(batch), None])
    gpu = find_gpu("A100-80GB")
    two, eight = (objects.estimator.largest_batch(replace(objects.mixtral, top_k=k), gpu) for k in (2, 8))
    _try("07.2", (objects.estimator, objects.mixtral), [two / eight], [4, eight / two, 1.01 * two / eight, "4", None])
    costs = {
        name: objects.estimator.estimate(objects.llama, find_gpu(name), 10**8).cost[1]
        for name in objects.estimator.prices
    }
    best = min(costs, key=costs.get)
    wrong = [(name, cost) for name, cost in costs.items() if name != best]
    given = objects.estimator, objects.llama
    _try("07.3", given, [(best, costs[best])], [*wrong, best, (best, 1.02 * costs[best]), (best, None), None])


class _Block(torch.nn.Module):
    """The layer of 08.2; its variants are wrong."""

    kind, modes, rank = torch.nn.RMSNorm, (4, 4, 4), 4

    def __init__(self, width):
        super().__init__()
        self.norm = self.kind(width)
        self.up, self.down = (TTLinear(width, width, self.modes, self.modes, self.rank) for _ in range(2))

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


@pytest.mark.long
def test_08():
    class Centred(_Block):
        kind = torch.nn.LayerNorm

    class OtherOrder(_Block):  # of its parts
        def __init__(self, width):
            super().__init__(width)
            self.up = self._modules.pop("up")

    class OfRank8(_Block):
        rank = 8

    class OfTwoModes(_Block):
        modes = 8, 8

    class Twice(_Block):
        def forward(self, x):
            return x + 2 * self.down(torch.nn.functional.silu(self.up(self.norm(x))))

    class Refused(_Block):
        def forward(self, x):
            return x + self.down(torch.sigmoid(self.up(self.norm(x))))

    class ByLength(_Block):  # traced with 16 tokens, it computes something else for fewer
        def forward(self, x):
            return super().forward(x) if x.shape[1] in (5, 16) else x

    wrong = [Centred, OfRank8, OfTwoModes, Twice, Refused, ByLength, lambda width: width, _Block(64), "block", None]
    _try("08.2", (), [_Block, OtherOrder], wrong)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(20, 64), *(_Block(64) for _ in range(2)), torch.nn.Linear(64, 5))
    model = trace(net, 20)
    cycles = [
        time_program(compile(model, Options(flow)).sample, 20).cycles for flow in ("right_to_left", "bidirectional")
    ]
    ratio = cycles[0] / cycles[1]
    _try("08.1", (model,), [ratio], [1.02 * ratio, 1 / ratio + 0.1, cycles[0], str(ratio), None])
    pair = _Attends(None), _Attends(0.125)
    _try("08.3", pair, ["scale"], ["causal", "heads", 0.125, None])


class _Attends(torch.nn.Module):
    """Attention of two heads of 32 features, of any scale."""

    def __init__(self, scale):
        super().__init__()
        self.table, self.head, self.scale = torch.nn.Embedding(20, 64), torch.nn.Linear(64, 4), scale

    def forward(self, tokens):
        x = self.table(tokens).unflatten(-1, (2, 32)).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(x, x, x, scale=self.scale)
        return self.head(y.transpose(1, 2).flatten(2))


def test_points_are_of_the_answers_that_are_right(capsys):
    check("00.1", (None, None))
    check("00.2", 1.0, CONFIG)
    show_points("00")
    assert "0 of 3 points; not right yet: 00.1, 00.2" in capsys.readouterr().out
    check("00.2", np.log(22) + np.log(122), CONFIG)
    show_points("00")
    assert "1 of 3 points; not right yet: 00.1" in capsys.readouterr().out


def test_points_are_those_of_the_notebook_that_was_handed_out(capsys, tmp_path, monkeypatch):
    """A lecturer gives 00.2 other points and adds a check; a folder without the notebook has the library's points."""
    notebook = json.loads(next(FOLDER.glob("00_*.ipynb")).read_text(encoding="utf-8"))
    (mark,) = [m for m in _marks(notebook) if m.get("grade_id") == "check-00-2"]
    mark["points"] = 2.5
    notebook["cells"].append({"metadata": {"nbgrader": {"grade": True, "grade_id": "check-mine", "points": 4}}})
    monkeypatch.chdir(tmp_path)
    check("00.2", np.log(22) + np.log(122), CONFIG)
    check("00.1", (None, None))
    for text, said in (
        (json.dumps(notebook), "2.5 of 8.5 points; not right yet: 00.1; not counted here: mine (4)\n"),
        ("no notebook", "1 of 3 points; not right yet: 00.1\n"),
    ):
        (tmp_path / "00_start_here.ipynb").write_text(text)
        capsys.readouterr()
        show_points("00")
        assert capsys.readouterr().out == said


def _marks(notebook):
    return [cell["metadata"].get("nbgrader", {}) for cell in notebook["cells"]]


@pytest.mark.filterwarnings("default:<noise>")
@pytest.mark.parametrize("noise", ["warning", "print", "handler", "file descriptor", "child process", "progress bar"])
def test_what_an_answer_writes_to_stderr_is_text_of_the_check(noise, capfd, monkeypatch):
    """nbgrader gives 0 points to a cell with anything on stderr."""
    monkeypatch.setattr(warnings, "showwarning", lambda *about: sys.stderr.write(warnings.formatwarning(*about[:4])))
    handler = logging.StreamHandler()  # holds the stream that was there before
    log = logging.Logger("mine")
    log.addHandler(handler)
    make = {
        "warning": lambda: warnings.warn("<noise>", UserWarning, stacklevel=1),
        "print": lambda: print("<noise>", file=sys.stderr),
        "handler": lambda: log.warning("<noise>"),
        "file descriptor": lambda: os.write(2, b"<noise>"),
        "child process": lambda: subprocess.run(["sh", "-c", "echo '<noise>' >&2"], check=True),
        "progress bar": lambda: [None for _ in tqdm(range(3), desc="<noise>", mininterval=0)],
    }[noise]

    def noisy(matrix, rank):
        make()
        return cut(matrix, rank)

    def wrong(matrix, rank):
        return noisy(matrix, rank - 1)

    grade("01.4", noisy)
    assert capfd.readouterr() == ("", "")
    check("01.4", noisy)
    shown, stderr = capfd.readouterr()
    assert shown.startswith("Right.") and "costs no points:\n" in shown and "<noise>" in shown and not stderr
    assert "0/3" not in shown or noise != "progress bar"
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    for judge in (check, grade):
        with pytest.raises(NotRight):
            judge("01.4", wrong)
        shown, stderr = capfd.readouterr()
        assert "<noise>" in shown and not stderr
    print("after", file=sys.stderr)
    os.write(2, b"after\n")
    assert capfd.readouterr() == ("", "after\nafter\n")


def test_a_hint_comes_on_request():
    wrong = Verdict("Not yet: you gave <1>, which is too small. Hint: count again.")
    found, _, hint = wrong._repr_html_().partition("<details>")
    assert "Not" in found and "&lt;1&gt;" in found and "count again" in hint and "count again" not in found
    assert "<details>" not in Verdict("Right. Good.")._repr_html_()
    assert repr(wrong) == str(wrong)


def test_every_exercise_is_tried():
    assert exercises_06.check is exercises_07.check is check
    text = Path(__file__).read_text(encoding="utf-8")
    assert set(re.findall(r'_try\(\s*"(.*?)"', text)) == set(EXERCISES)


def test_check_raises_where_nbgrader_runs_it(monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    check("01.1", 1296)
    with pytest.raises(NotRight):
        check("01.1", 5)


def test_hidden_tests_see_what_visible_ones_do_not(capsys):
    def only_the_example(lives):
        return 12

    check("04.4", only_the_example)
    assert capsys.readouterr().out.startswith("Right.")
    with pytest.raises(NotRight):
        grade("04.4", only_the_example)
