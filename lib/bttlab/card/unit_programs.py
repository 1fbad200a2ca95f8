"""Programs that test one unit of the machine with one bank at a time, to bring up a new card."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bttlab.compiler.buffers import GRADIENT_OF, MOMENTS, Buffer
from bttlab.compiler.builder import Builder, Level
from bttlab.compiler.instruction import BANK, At, Memory, at
from bttlab.compiler.layer import LayerProgram, assemble
from bttlab.compiler.machine import M
from bttlab.compiler.memory.layout import Block, matrix_block
from bttlab.compiler.program import NO_OFFSETS
from bttlab.compiler.schedule.dependencies import data_waits, set_waits
from bttlab.model.choices import OPTIMIZERS
from bttlab.model.config import Optimizer

VECTORS, TOKENS = 16, 16
UNITS = ("copy", "vector", "shuffle", "engine 0", "engine 1", "update")
RATE = 0.01


@dataclass(frozen=True, eq=False)
class UnitProgram:
    """A program that uses one unit of `UNITS`, the banks that it reads and writes, and the update's optimizer."""

    unit: str
    banks: tuple[int, ...]
    program: LayerProgram
    optimizer: Optimizer | None = None

    def inputs(self, seed: int) -> np.ndarray:
        """Return random vectors for LOAD, float32 of shape (vectors, LANES); a second seed detects stale results."""
        random = np.random.default_rng(seed)
        tensors = {x.name: random.standard_normal(x.shape).astype(np.float32) for x in self.program.inputs}
        if self.optimizer:  # a second moment is a sum of squares
            tensors["x3"] = np.abs(tensors["x3"])
        return self.program.pack(tensors)

    def run(self, trainer: Any, seed: int) -> dict[str, np.ndarray]:
        """Run it on a card and return its results, float32 of shape (16, LANES): r, or p, m and v of the update."""
        trainer.load_program(self.program)
        vectors = trainer.execute(self.inputs(seed), self.program.tokens, self.optimizer, RATE)
        return {name: result for name, result in self.program.unpack(vectors).items() if name}


def unit_programs() -> Iterator[UnitProgram]:
    """Yield a program for each bank that a unit reads or writes and that LOAD and STORE can access."""
    ports = {port.name: port.banks for port in M.ports}
    loaded = [bank for bank in ports["VECTOR_R0"] if bank not in (M.IN_BANK, M.OUT_BANK)]
    stored = [bank for bank in ports["VECTOR_A"] if bank not in (M.IN_BANK, M.OUT_BANK)]
    both = [bank for bank in loaded if bank in stored]
    for bank in both:
        yield _vector("copy", M.COPY, bank, None, bank)
    for bank in _common(ports["VECTOR_B"], loaded):
        source = next(each for each in both if each != bank)
        yield _vector("vector", M.ADD, source, bank, next(each for each in both if each not in (bank, source)))
    sources, results = _common(ports["SHUFFLE_SOURCE"], loaded), _common(ports["SHUFFLED"], stored)
    for source, result in _pairs(sources, results):
        yield _shuffle(source, result)
    for engine in range(M.ENGINES):
        results = _common(ports[f"ENGINE_OUT_{engine}"], stored)
        for scalars, result in _pairs(_common(ports[f"SCALARS_{engine}"], loaded), results):
            yield _engine(engine, sources, scalars, result, reduce=False)
        for stream, result in _pairs(_common(ports[f"STREAM_{engine}"], loaded), results):
            yield _engine(engine, sources, stream, result, reduce=True)
    for optimizer in map(Optimizer, OPTIMIZERS):
        for bank in GRADIENT_OF:
            yield _update(bank, next(each for each in both if each != bank), optimizer)


def _common(banks: tuple[int, ...], others: list[int]) -> list[int]:
    return [bank for bank in banks if bank in others]


def _pairs(sources: list[int], results: list[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of two different banks, with each source and each result at least once."""
    for number in range(max(len(sources), len(results))):
        source = sources[number % len(sources)]
        yield source, next(r for r in (results[number % len(results) :] + results) if r != source)


def _vectors(bank: int, operand: int) -> At:
    """Return the address of an operand. Addresses of different operands do not overlap, even in the same bank."""
    return at(Memory(BANK, bank), operand * VECTORS)


def _vector(unit: str, operation: int, a: int, b: int | None, result: int) -> UnitProgram:
    builder = Builder()
    place = [_vectors(a, 0)] + ([_vectors(b, 1)] if b is not None else [])
    out = _vectors(result, 2)
    operands = [At(each.memory, each.base, {"w": 1}) for each in (*place, out)]
    second = operands[1] if b is not None else None
    builder.vector(operation, unit, [Level("w", VECTORS)], operands[0], second, r0=operands[-1])
    return _assembled(unit, builder, place, {"r": out})


def _shuffle(source: int, result: int) -> UnitProgram:
    builder = Builder()
    place, out = _vectors(source, 0), _vectors(result, 2)
    order = np.random.default_rng(source).permutation(VECTORS * M.LANES).reshape(VECTORS, M.LANES)
    builder.shuffle(
        "shuffle", 1, order, at(place.memory, place.base, y=1), at(out.memory, out.base, block=VECTORS, y=1)
    )
    return _assembled("shuffle", builder, [place], {"r": out})


def _engine(engine: int, sources: list[int], bank: int, result: int, reduce: bool) -> UnitProgram:
    """Return a product with 16 rows in an engine's operand buffer: EXPAND, or REDUCE over one vector."""
    builder = Builder()
    rows = _vectors(next(each for each in sources if each not in (bank, result)), 1)
    place, out = _vectors(bank, 0), _vectors(result, 2)
    buffer = at(Memory.operand_buffer(engine), 0)
    same = np.arange(M.LANES).reshape(1, M.LANES)
    source, rows_of = at(rows.memory, rows.base, block=1, y=1), at(buffer.memory, buffer.base, y=1)
    builder.shuffle("fill", M.ROWS, same, source, buffered_result=rows_of, row=("block", 0))
    stream, sums = at(place.memory, place.base, m=1), at(out.memory, out.base, m=1)
    if reduce:
        loops = [Level("k", 1 + 1), Level("m", VECTORS)]  # the last step of k adds up the lanes
        builder.reduce(engine, "reduce", loops, "k", at(buffer.memory, buffer.base), stream, sums)
    else:
        builder.expand(engine, "expand", [Level("m", VECTORS)], at(buffer.memory, buffer.base), stream, sums)
    return _assembled(f"engine {engine}", builder, [rows, place], {"r": out})


def _update(bank: int, source: int, optimizer: Optimizer) -> UnitProgram:
    """Return an update of 16 vectors. The vector unit copies the gradient to its bank: LOAD cannot access all banks."""
    builder, after = Builder(), Builder()
    p, loaded, m, v = _vectors(bank, 0), _vectors(source, 1), *(_vectors(each, 0) for each in MOMENTS)
    gradient = _vectors(GRADIENT_OF[bank], 1)
    loops = [Level("one", 1), Level("w", VECTORS)]
    builder.columns("gradient", loops, at(loaded.memory, loaded.base, w=1), r1=at(gradient.memory, gradient.base, w=1))
    after.update("update", VECTORS, p, gradient, m, v)
    set_waits(after.instructions, data_waits(after.instructions, NO_OFFSETS))
    unit = _assembled("update", builder, [p, loaded, m, v], {"p": p, "m": m, "v": v})
    banks = *unit.banks, gradient.number
    return replace(unit, banks=banks, program=replace(unit.program, flush=after.instructions), optimizer=optimizer)


def _assembled(unit: str, builder: Builder, inputs: list[At], outputs: dict[str, At]) -> UnitProgram:
    def transfer(name: str, where: At) -> Block:
        buffer = Buffer(name, VECTORS, bank=where.number, base=where.base)
        return matrix_block(name, buffer, VECTORS, M.LANES)

    banks = tuple(dict.fromkeys(where.number for where in (*inputs, *outputs.values())))
    arrivals = [transfer(f"x{number}", where) for number, where in enumerate(inputs)]
    results = [transfer(name, where) for name, where in outputs.items()]
    return UnitProgram(unit, banks, assemble(builder, TOKENS, arrivals, results))
