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
    assert program_module._draft.cache_info().currsize == 0


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
