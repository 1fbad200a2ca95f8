"""The kernel's commands, with a program of one softmax layer that has only biases.

tests/test_program_steps.py has failed samples, chunks and predictions, with compiled programs.
"""

import numpy as np
import pytest

from processor_loop import IMAGE_VECTORS, LANES, C, Instruction, Loop, Operand, Program, register

pytestmark = pytest.mark.long  # the loop compiled once more, with every port reaching every bank

F = np.float32
CLASSES, SLOTS = 37, 11
RATE, MOMENTS = F(0.5), 3
TARGET, SPREAD = 4, 5  # scalars: weights of the label and of every class


@pytest.fixture(scope="module")
def loop():
    return Loop()


@pytest.fixture
def random(loop):
    random = np.random.default_rng(7)
    loop.fill(random)
    return random


def softmax_program():
    def word_wise(operation, n=MOMENTS, **more):
        return {"unit": C.VECTOR, "operation": operation, "n": (n,), **more}

    def row(operation, b=None, result=None, flags=C.INTENT, **more):
        operands = {0: Operand(b or 4, 0, (1,)), 5: Operand(0, 7)} | ({3: Operand(result, 0, (1,))} if result else {})
        return Instruction(
            **word_wise(operation),
            operands=operands,
            count=CLASSES,
            flags=flags,
            depth=8,
            accumulator_level=3,
            vector_level=3,
            **more,
        )

    def transfer(source, result):
        operands = {0: Operand(source, 0, (1,)), 3: Operand(result, 0, (1,))}
        return Instruction(**word_wise(C.COPY), operands=operands)

    def accumulators(operation, wait):
        """For each vector of the sample the logits of its slot, a vector in bank 9."""
        operands = {0: Operand(9, 0, (1,)), 5: Operand(0, 100)}
        more = {"flags": C.LOSS, "count": SLOTS, "after_drain": {C.VECTOR: wait}}
        return Instruction(C.VECTOR, operation, (register(0),), operands=operands, **more)

    parameters, gradients, first, second = (Operand(bank, 0, (1,)) for bank in (4, 5, 7, 8))
    operands = dict(enumerate((parameters, gradients, first, second)))
    updates = [Instruction(C.UPDATE, 0, (MOMENTS,), None, operands, C.CLEAR)]
    forward = [
        *updates,
        row(C.MAXIMUM, after_drain={C.UPDATE: 1}),
        row(C.EXPONENT, result=6, flags=C.INTENT | C.LOSS, immediates=(0, 0), after_drain={C.VECTOR: 1}),
        accumulators(C.MAXIMUM, 2),
        accumulators(C.EXPONENT, 3),
    ]
    backward = [
        row(
            C.LOSS_BACK,
            6,
            5,
            flags=C.INTENT | C.CHECK,
            immediates=(register(SPREAD), register(TARGET)),
            after_drain={C.VECTOR: 2},
        )
    ]
    load = [transfer(C.IN_BANK, bank) for bank in (4, 7, 8)]
    store = [transfer(bank, C.OUT_BANK) for bank in (4, 7, 8)]
    clear = [Instruction(**word_wise(C.COPY), operands={3: Operand(5, 0, (1,))})]
    sections, instructions = {}, []
    for section, part in (
        (C.FORWARD, forward),
        (C.BACKWARD, backward),
        (C.FLUSH, updates),
        (C.LOAD_SECTION, load),
        (C.STORE_SECTION, store),
        (C.CLEAR_SECTION, clear),
    ):
        sections[section] = (len(instructions), len(part))
        instructions += part
    entries = np.zeros((3, C.FUNCTION_ENTRIES), F)
    at = 2 ** (np.arange(64) / 64)
    entries[:, :64] = at, at * np.log(2) / 64, at * (np.log(2) / 64) ** 2 / 2
    functions = [(0, C.EXPONENTIAL, 6, -80.0, 80.0, 64 / np.log(2))]
    program = Program(instructions, sections, constants=[1.0], functions=functions, function_table=entries)
    program.model, program.offset_limit = (32, CLASSES, SLOTS), 100
    program.registers = [(-1, 0, 0, C.SEQUENCE)]
    return program


def record(tokens=1, intent=3, rate=RATE, token_offsets=0, slots=0, step=1.0, root=1.0, keep=1.0):
    vectors = np.zeros((1 + (C.OFFSET_TABLES + 1) * C.SEQUENCE // LANES, LANES), np.int32)
    scalars = np.zeros(C.SCALARS, F)
    scalars[:4] = rate, step, root, keep
    scalars[TARGET], scalars[SPREAD] = 0.9, 0.1 / CLASSES
    vectors[0, :2] = tokens, intent
    vectors[0, 2:] = scalars.view(np.int32)
    vectors[1 : 1 + C.OFFSET_TABLES * C.SEQUENCE // LANES] = token_offsets
    vectors[1 + C.OFFSET_TABLES * C.SEQUENCE // LANES :] = slots
    return vectors


class Trainer:
    """The kernel with the softmax program, and the same training in NumPy (double precision)."""

    def __init__(self, loop, random):
        self.loop = loop
        assert loop.load(softmax_program()) == C.DONE
        self.state = np.zeros((3 * MOMENTS, LANES), F)
        self.state[:MOMENTS].ravel()[:CLASSES] = random.normal(size=CLASSES)
        loop.call(C.LOAD, memory=self.state.copy())

    def train(self, records, command=None, optimizer=(0, 0.0, 0.0, 0.0)):
        results = np.zeros((5 * len(records), LANES), np.int32)
        self.loop.call(
            *(C.TRAIN if command is None else command, len(records), optimizer, np.concatenate(records), results)
        )
        return results.reshape(len(records), 5, LANES)

    def store(self):
        state = np.zeros_like(self.state)
        self.loop.call(C.STORE, memory=state)
        return state


@pytest.fixture
def trainer(loop, random):
    return Trainer(loop, random)


def test_description_and_digest(loop):
    assert loop.widths.tolist() == list(C.widths)
    assert loop.digest == C.digest


def test_training_is_gradient_descent(trainer):
    intents = [3, 0, 36, 3, 3, 17]
    biases = trainer.state[:MOMENTS].ravel()[:CLASSES].astype(float)
    results = trainer.train([record(intent=intent) for intent in intents])
    for intent, result in zip(intents, results, strict=True):
        chances = np.exp(biases - biases.max())
        chances /= chances.sum()
        loss, intent_loss, slot_loss = result[0, 2:5].view(F)
        assert result[0, :2].tolist() == [C.DONE, biases.argmax()]
        assert loss == intent_loss == pytest.approx(-np.log(chances[intent]), rel=1e-5)
        assert slot_loss == 0
        target = 0.9 * (np.arange(CLASSES) == intent) + 0.1 / CLASSES
        biases -= RATE * (chances - target)
    assert set(results[1:, 0, 5] - results[0, 0, 5]) == {MOMENTS - 1}  # cycles: the first has no update to do
    assert (results[:, 0, 6] > 0).tolist() == [False] * 5 + [True]  # the last update, in FLUSH
    stored = trainer.store()
    np.testing.assert_allclose(stored[:MOMENTS].ravel()[:CLASSES], biases, rtol=1e-4, atol=1e-6)
    assert not stored[:MOMENTS].ravel()[CLASSES:].any()


def test_bad_optimizers_are_refused(trainer):
    for optimizer in ((3, 0.0, 0.0, 0.0), (1, 1.0, 0.0, 0.0), (2, 0.9, -0.1, 1e-8), (2, 0.9, 0.9, -1.0)):
        assert trainer.train([record()], optimizer=optimizer)[0, 0, 0] == C.BAD_OPTIMIZER
    assert trainer.train([record(step=2.0**61)], optimizer=(2, 0.9, 0.9, 1.0))[0, 0, 0] == C.UPDATE_NOT_FINITE
    assert trainer.train([record()], optimizer=(2, 0.9, 0.9, 1.0))[0, 0, 0] == C.DONE


@pytest.mark.parametrize("third, limit", [(0, 2.0**63), (1, 2.0**63), (2, 2.0**127)])
def test_a_state_beyond_its_limits_is_refused(trainer, third, limit):
    before = trainer.state.copy()
    before[third * MOMENTS + 2, 15] = limit
    trainer.loop.call(C.LOAD, memory=before.copy())
    for name, status in enumerate((third < 1, third < 2, True)):
        wanted = C.STATE_NOT_FINITE if status else C.DONE
        assert trainer.train([record(rate=0.0)], optimizer=(name, 0.5, 0.5, 1.0))[0, 0, 0] == wanted
    trainer.loop.call(C.LOAD, memory=trainer.state.copy())
    assert trainer.train([record()], optimizer=(2, 0.5, 0.5, 1.0))[0, 0, 0] == C.DONE


def test_programs_that_do_not_fit_are_refused(loop):
    def status(change):
        image = softmax_program().image(loop.digest)
        change(image)
        return loop.call(C.LOAD_PROGRAM, len(image), image=image)[0, 0]

    def set_word(vector, element, value):
        def change(image):
            image[1, 3 + C.OFFSET_TABLES] -= value - image[vector, element]
            image[vector, element] = value

        return change

    assert status(lambda image: None) == C.DONE
    for vector, element, value in (
        *((0, 0, 1), (0, 1, 99), (0, 2, 12345), (0, 3, 5), (0, 4, -1), (0, 5, 99), (1, 0, 65), (1, 0, 0)),
        *((IMAGE_VECTORS, 0, 7), (0, 6, 2)),
    ):
        assert status(set_word(vector, element, value)) == C.NO_PROGRAM, (vector, element, value)
        results = np.zeros((5, LANES), np.int32)
        assert loop.call(C.TRAIN, 1, records=record(), results=results)[0, 0] == C.NO_PROGRAM
    assert status(lambda image: image.__setitem__((4, 4), 1)) == C.NO_PROGRAM  # the checksum


def test_a_program_that_is_stuck_says_so(loop):
    program = softmax_program()
    program.instructions[1].after_end = {C.ENGINE_0: 1}
    assert loop.load(program) == C.DONE
    results = np.zeros((5, LANES), np.int32)
    loop.call(C.TRAIN, 1, records=record(), results=results)
    assert results[0, 0] == C.PROGRAM_STUCK


def test_reach_covers_what_a_call_touches(loop):
    vectors = len(softmax_program().image(loop.digest))
    assert loop.load(softmax_program()) == C.DONE
    assert loop.reach(C.LOAD_PROGRAM, vectors) == [0, 5 * 64, 0, 64 * vectors]
    assert loop.reach(C.TRAIN, 7) == [64 * 7 * len(record()), 64 * 7 * 5, 0, 0]
    assert loop.reach(C.STORE) == [0, 0, 64 * 3 * MOMENTS, 0]
    assert loop.reach(C.DESCRIBE)[1] >= 64 * (1 + len(loop.widths) / LANES)
