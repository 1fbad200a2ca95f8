"""The film of a step: what it has touched the machine has, in the end as the estimate counts; alive is what is read."""

from collections import defaultdict
from dataclasses import replace

import nbformat
import numpy as np
import pytest

from bttlab.baseline.memory import counted_step, step_timeline
from bttlab.baseline.step import Task
from bttlab.card.image import IMAGES
from bttlab.card.processor import sample_records
from bttlab.compiler.access import accesses
from bttlab.compiler.instruction import UNIT_NAMES
from bttlab.compiler.program import Options, compile
from bttlab.data import load_corpus
from bttlab.estimate.card import estimate
from bttlab.estimate.film import Film
from bttlab.lab import StepFilm, Workload
from bttlab.model import ModelConfig, Optimizer
from bttlab.util.errors import BttlabError

from conftest import ROOT
from processor_native import Native, NativeProcessor
from training_processor import SMALL, some_parameters, some_samples

TOKENS = 11


@pytest.fixture(scope="module")
def film():
    return Film(compile(SMALL), TOKENS)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_longest_sample_has_touched_in_the_end_what_the_estimate_counts(optimizer):
    memory = estimate(SMALL, [TOKENS], optimizer).memory
    film = Film(compile(SMALL), SMALL.sequence_length, optimizer)
    end = film.frame(film.cycles - 1)
    assert end.touched == {bank.name: bank.bytes for bank in memory.banks if bank.name in end.touched}
    assert sum(end.touched.values()) == film.most_touched == sum(bank.bytes for bank in memory.banks)
    assert int(film.touched(np.array([film.cycles - 1]))[0]) == film.most_touched
    with pytest.raises(BttlabError, match=f"takes 1 to {SMALL.sequence_length}"):
        Film(film.program, SMALL.sequence_length + 1)


def _changed_by(native: Native, program, samples) -> dict[str, np.ndarray]:
    """Return the words of each bank in which a mark is gone after a call of the emulated processor."""
    banks = {name: memory for name, memory in native.memories.items() if name.startswith("bank")}
    random = np.random.default_rng(1)
    marks = {name: random.integers(1, 2**20, memory.shape).astype(np.float32) for name, memory in banks.items()}
    for name, memory in banks.items():
        memory[:] = marks[name]
    processor = NativeProcessor.__new__(NativeProcessor)
    processor._library, processor.program = native.library, None
    processor.load_program(program)
    processor.load(some_parameters(SMALL, seed=0))
    optimizer = Optimizer("sgd")
    processor.train(sample_records(program, samples, [1e-2], optimizer), optimizer)
    return {name: (memory != marks[name]).any(axis=1) for name, memory in banks.items()}


def test_frames_have_touched_what_the_emulated_card_has_by_then(film):
    """The emulated card runs the first instructions of a sample alone; the frames around their end say what it touched.

    Of what is not resident, as parameters are: these are touched by loading them.
    """
    native = Native("-DBTTLAB_FAST", *IMAGES[-1].flags)
    samples = some_samples(SMALL, (TOKENS,), 0)
    program, forward = film.program, len(film.program.forward)
    begins, ends = np.array(film.timing.begin), np.array(film.timing.end)
    resident = {str(memory): first == 0 for memory, first in film._first.items()}
    compared = 0
    for count in (forward // 4, forward // 2, forward, forward + len(program.backward) // 2):
        part = replace(program, forward=program.sample[:count], backward=[], flush=[])
        changed = _changed_by(native, part, samples)
        before, after = begins[count:].min() - 1, ends[:count].max()
        for memory, first in film._first.items():
            name = str(memory)
            if name not in changed or name in ("bank 0", "bank 1"):
                continue
            other = ~resident[name]
            assert not ((first <= before) & other & ~changed[name]).any(), (count, name)
            assert not (changed[name] & other & (first > after)).any(), (count, name)
            compared += int((changed[name] & other).sum())
        frame = film.frame(int(before))
        assert frame.touched == {
            str(memory): int((first <= before).sum()) * film._word_bytes[memory]
            for memory, first in film._first.items()
        }
    assert compared > 1000


def test_a_word_is_alive_from_its_write_to_its_last_read(film):
    """Word by word in the order of the cycles, of some cycles: as the definition says it."""
    events = defaultdict(list)
    for instruction, begin in zip(film.program.sample, film.timing.begin, strict=True):
        indices = instruction.grid(TOKENS)
        for access in accesses(instruction):
            words = access.addresses(instruction, indices, TOKENS, np.zeros((4, TOKENS), int))
            for step in np.flatnonzero(access.acts(indices, TOKENS)):
                if access.memory in film._first:
                    events[str(access.memory), int(words[step])].append((int(begin) + int(step), access.writes))
    cycles = [0, film.peak, film.cycles // 2, film.cycles - 1]
    words_alive = dict.fromkeys(cycles, 0)
    for happened in events.values():
        happened.sort()
        for cycle in cycles:
            now = [writes for when, writes in happened if when <= cycle]
            later = [writes for when, writes in happened if when > cycle]
            at_once = any(when == cycle for when, _ in happened)
            old = not happened[0][1]  # read first: there before the sample, and after it
            is_read_later = (not later[0]) if later else old
            words_alive[cycle] += at_once or (is_read_later and (bool(now) or old))
    untouched = sum(  # parameters, and gradients that the update clears, of words that this sample has not
        (str(memory), int(word)) not in events
        for memory, first in film._first.items()
        for word in np.flatnonzero((first == 0) & film._is_resident(memory, len(first)))
    )
    lives = film._lives
    for cycle in cycles:
        found = int(((lives["begin"] <= cycle) & (cycle < lives["end"])).sum())
        assert found == words_alive[cycle] + untouched, cycle


def test_frames_add_up_and_the_peak_is_the_highest(film):
    cycles = np.arange(0, film.cycles, 97)
    total = sum(film.alive(cycles).values())
    for place in (0, len(cycles) // 2, -1):
        frame = film.frame(int(cycles[place]))
        assert frame.alive == total[place] == sum(sum(frame.bytes(name).values()) for name in frame.tensors)
        assert all(sum(frame.bytes(name).values()) <= frame.touched[name] for name in frame.tensors)
    assert film.frame(film.peak).alive >= total.max()


@pytest.fixture(scope="module")
def workload():
    return Workload.of(load_corpus("airline"), ModelConfig())


def test_a_timeline_of_pytorch_ends_in_the_counted_peak(workload):
    config = ModelConfig(encoders=1)
    tasks = [Task(config, "bidirectional", workload.train[0], 4e-3, 0, "cpu") for _ in range(2)]
    for task in tasks:
        task.step(0, task.loss)
    _, at_peak = counted_step(tasks[0])
    assert max(sum(step_timeline(tasks[1]).values())) == sum(at_peak.values())


def test_the_widget_goes_to_the_peak_and_through_the_products(workload):
    film = StepFilm(workload.train, ModelConfig(encoders=1), tokens=9)
    film._go(film.film.peak)
    most = film.frame.alive
    assert f"{most / 1e6:.2f} MB</b> are alive" in film.results and film.cycle.value == film.film.peak
    film._step(1)
    begins = {int(b) for i, b in zip(film.film.program.sample, film.film.timing.begin, strict=True) if i.unit < 2}
    assert film.cycle.value in begins and film.frame.alive <= most
    there = film.cycle.value
    film._step(-1)
    film._step(1)
    assert film.cycle.value == there and {UNIT_NAMES[0], UNIT_NAMES[1]} & film.frame.working.keys()
    peak = film.film.peak
    film.flow.value = "right_to_left"
    assert film.film.peak != peak and film.results.count(" MB in cycle ") == 2
    film.beside.value = "dense"
    assert "PyTorch, dense" in film._words.value and film.message == ""


def test_pytorch_beside_the_card_trains_the_same_model(workload):
    """Of another rank, too; the H100's record is of the paper's models alone."""
    model = ModelConfig(linear_rank=4)
    film = StepFilm(workload.train, model, tokens=9)
    timeline, tokens = film._torch_of("tensor", "bidirectional", 9)
    sample = workload.train[int(np.flatnonzero(workload.train.lengths == tokens)[0])]
    task = Task(model, "bidirectional", sample, 4e-3, 0, "cpu")
    task.step(0, task.loss)
    assert max(sum(timeline.values())) == max(sum(step_timeline(task).values()))
    assert not any("H100" in text.get_text() for text in film._torch.texts)
    paper = StepFilm(workload.train, tokens=9)
    assert any("H100" in text.get_text() for text in paper._torch.texts)
    assert max(sum(paper._torch_of("tensor", "bidirectional", 9)[0].values())) > max(sum(timeline.values()))


def test_pytorch_beside_the_card_contracts_in_the_same_order(workload):
    film = StepFilm(workload.train, tokens=9)
    title, peak = film._torch.get_title(loc="left"), film._torch.get_ylim()[1]
    film.flow.value = "right_to_left"
    assert film._torch.get_title(loc="left") == title.replace("tensor", "tensor, right to left")
    assert film._torch.get_ylim()[1] != peak and not film._torch.texts
    film.beside.value = "dense"
    assert "right to left" not in film._torch.get_title(loc="left") and film._torch.texts


def test_the_peaks_that_notebook_02_tells():
    cells = nbformat.read(ROOT / "notebooks" / "02_contraction_flow.ipynb", as_version=4).cells
    text = " ".join(next(cell.source for cell in cells if cell.id == "flow-after-film").split())
    peaks, cycles = {}, {}
    for flow in ("right_to_left", "bidirectional"):
        program = compile(ModelConfig(encoders=1), Options(flow))
        for tokens in (13, 32):
            film = Film(program, tokens)
            peaks[flow, tokens] = film.frame(film.peak).alive / 1e6
            cycles[flow, tokens] = film.cycles
    right, both = (lambda t: peaks["right_to_left", t]), (lambda t: peaks["bidirectional", t])
    assert right(13) < both(13) and both(32) < right(32)
    assert f"At 13 tokens right to left has the lower peak, {right(13):.2f} MB against {both(13):.2f};" in text
    assert f"at 32 tokens the bi-directional order has it, {both(32):.2f} MB against {right(32):.2f}." in text
    for tokens in (13, 32):
        assert cycles["right_to_left", tokens] / cycles["bidirectional", tokens] == pytest.approx(2, rel=0.1)
