"""Flow "auto" is the fastest of its candidates for the lengths of a corpus, and never slower than the paper's flow."""

from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest

from bttlab.card.opening import open_trainer
from bttlab.compiler import program as program_module
from bttlab.compiler.program import Options, ProgramError, compile
from bttlab.compiler.schedule.order import OrderSearch
from bttlab.compiler.timing import time_program
from bttlab.model import ModelConfig

ONE = ModelConfig(encoders=1)
LONG = pytest.mark.long
FULL = ModelConfig(encoders=6)  # the banks have no space for all that may be kept
LENGTHS = {4: 10, 11: 30, 20: 5}


def cycles(program, lengths) -> int:
    return int(time_program(program.sample, np.array(list(lengths))).cycles @ np.array(list(lengths.values())))


@pytest.mark.parametrize(
    ("config", "flow"),
    [(ONE, "mixed"), pytest.param(replace(ONE, linear_rank=24), (2, 2), marks=LONG)],
)
def test_it_is_the_fastest_in_every_configuration(config, flow):
    found = compile(config, Options("auto", lengths=LENGTHS))
    plain, paper = (compile(config, Options(of)) for of in (flow, "bidirectional"))
    assert found.flow == flow
    assert cycles(found, LENGTHS) <= cycles(plain, LENGTHS) < cycles(paper, LENGTHS)


def test_it_depends_on_the_lengths_of_the_corpus(monkeypatch):
    monkeypatch.setattr(program_module, "WINDOWS", ())  # only flows
    model = replace(ONE, linear_rank=20)
    for lengths, flow in (({32: 1}, "mixed"), ({2: 1}, (2, 2)), ({32: 1, 2: 99}, (2, 2))):
        assert compile(model, Options("auto", lengths=lengths)).flow == flow
    trainer = open_trainer(model, "emulated", flow="auto", lengths={32: 1})
    assert trainer.program.sha256 == compile(model, Options("auto", lengths={32: 1})).sha256


@pytest.mark.usefixtures("no_stored_programs")
def test_a_flow_whose_program_takes_too_many_registers_gives_way_to_another(monkeypatch):
    model = replace(ONE, linear_rank=11)
    wanted = compile(model, Options("auto")).flow
    compiled = program_module._compiled

    def refused(model, flow, *rest):
        return ProgramError("too many registers") if flow == wanted else compiled(model, flow, *rest)

    program_module._fastest.cache_clear()
    monkeypatch.setattr(program_module, "_compiled", refused)
    assert compile(model, Options("auto")).flow != wanted
    program_module._fastest.cache_clear()


@pytest.mark.parametrize("flow", ["auto", "bidirectional"])
def test_a_compilation_keeps_no_draft(flow):
    compile(replace(ONE, linear_rank=10), Options(flow))
    assert program_module._draft.cache_info().currsize == program_module._lowerings.cache_info().currsize == 0


def test_a_search_that_goes_on_finds_what_one_from_the_start_finds():
    emitted = program_module._emitted(ONE, "mixed", 14000, False)

    def found(search, effort):
        of = attrgetter("label", "operands", "flags", "after_end", "after_begin", "after_drain")
        return [of(instruction) for section in search.ordered(effort) for instruction in section]

    def new():
        return OrderSearch([emitted.forward, emitted.backward], emitted.offset_span, program_module.ORDER_TOKENS)

    search, efforts = new(), (0, 2000, None, 0)
    orders = [found(search, effort) for effort in efforts]
    assert orders == [found(new(), effort) for effort in efforts]
    assert orders[0] != orders[1] != orders[2] and orders[0] == orders[3]


@pytest.mark.parametrize("model", [ONE, pytest.param(FULL, marks=LONG)], ids=["all kept", "some kept"])
def test_a_lowering_that_windows_share_gives_each_the_program_that_it_has_alone(model):
    """Each search of banks begins with what no other has changed, and no earlier program changes with it."""
    of = attrgetter("label", "loops", "operands", "flags")

    def places(program):
        return [(block.name, block.bank, block.base) for block in program.layout.blocks]

    def emitted(window):
        return program_module._emitted(model, "mixed", window, False)

    shared = {window: emitted(window) for window in (15000, 10500, 15000)}
    first, blocks = emitted(15000), places(shared[15000])
    shared[12500] = emitted(12500)
    assert places(first) == blocks
    for window, program in shared.items():
        program_module._lowerings.cache_clear()
        alone = emitted(window)
        for mine, other in zip(program.sections, alone.sections, strict=True):
            assert list(map(of, mine)) == list(map(of, other))
        assert places(program) == places(alone) and program.regions == alone.regions
    assert len({str(list(map(of, program.forward))) for program in shared.values()}) == len(shared)
    program_module._lowerings.cache_clear()


@pytest.mark.parametrize("sums", [False, True])
def test_no_draft_is_shorter_than_the_bound_of_its_flow(sums):
    """The bound is of buffers without banks: those of a draft have ports and vectors that others use, too."""
    tokens, cycles = program_module.ORDER_TOKENS, {}
    for flow in program_module.CANDIDATES:
        bound = program_module._bound(ONE, flow, sums, tokens, batch_size=1)
        sample, flush = program_module._Draft(program_module._emitted(ONE, flow, 15000, sums)).ordered(0)
        cycles[flow] = int(time_program(sample, tokens).cycles) + (int(time_program(flush, 1).cycles) if flush else 0)
        assert cycles[flow] / 2 < bound <= cycles[flow]
    program_module._lowerings.cache_clear()
    assert program_module._bound(replace(ONE, encoders=6), "mixed", sums, tokens, 1) < cycles["mixed"]


@pytest.mark.parametrize("sums", [False, True])
def test_a_count_by_one_encoder_is_below_that_of_the_model_and_near_it(sums):
    for flow in program_module.CANDIDATES:
        assert program_module._least_count(ONE, flow, sums) == 0  # its own lowering counts
        for encoders in (2, 3):
            model = replace(ONE, encoders=encoders)
            counted = program_module._lowerings(model, flow, sums).unplaced().least_count("", 1)
            assert 0.95 * counted < program_module._least_count(model, flow, sums) <= counted
    program_module._lowerings.cache_clear()


@pytest.mark.usefixtures("no_stored_programs")
def test_a_model_with_too_many_instructions_is_refused_before_flows_are_compared(monkeypatch):
    emitted, flows = program_module._emitted, []

    def noted(model, flow, *rest):
        flows.append(flow)
        return emitted(model, flow, *rest)

    monkeypatch.setattr(program_module, "_emitted", noted)
    errors = []
    for flow in ("auto", "bidirectional"):
        with pytest.raises(ProgramError, match="the program has at least") as caught:
            compile(replace(FULL, linear_rank=11), Options(flow, sums=True))
        errors.append(str(caught.value))
    assert flows == ["bidirectional"] and errors[0] == errors[1]
