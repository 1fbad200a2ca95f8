"""Which banks programs ask each port for: what BTTLAB_READERS and BTTLAB_WRITERS of config.h have to list.

python tests/program_ports.py prints both lists as config.h has them, whatever it has now.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

from bttlab.compiler.graph import graph_of_config
from bttlab.compiler.instruction import Instruction
from bttlab.compiler.layer import LayerShape, compile_layer
from bttlab.compiler.lowering import Lowerings
from bttlab.compiler.machine import M
from bttlab.compiler.program import ORDER_TOKENS, compile
from bttlab.model import ModelConfig
from bttlab.tensor.order import Order

Ports = dict[str, set[int]]

FLOWS = tuple((near, far) for near in (1, 2, 3) for far in (1, 2, 3))
RANKS = {"encoders.0.query": (3, 5, 7, 9, 11), "encoders.0.second": 16, "slot_pooler": (12, 6, 2, 6, 12)}
SNIPS = ModelConfig(intents=9, slots=76).with_vocabulary(11_428)
LARGE = replace(SNIPS, encoders=4).with_vocabulary(16_000)
MODELS = (
    *((ModelConfig(encoders=2), flow) for flow in FLOWS),
    *((ModelConfig(encoders=encoders), flow) for encoders in (4, 6) for flow in ((2, 3), "bidirectional")),
    *((model, (2, 3)) for model in (SNIPS, LARGE, ModelConfig(encoders=2, ranks=RANKS))),
    (ModelConfig(heads=4, sequence_length=40).with_hidden_size(256), "bidirectional"),
)
LAYER = LayerShape((12, 8, 8), (8, 8, 12), (12,) * 5)
OWN = Order.of(["T1 = G4 G5", "T2 = G6 T1", "T3 = G2 G3", "T4 = T2 x", "T5 = T4 T3", "y = T5 G1"])


def programs() -> Iterator[list[Instruction]]:
    """Yield the instructions of all programs."""
    program = compile(SNIPS)
    yield [*program.load, *program.store, *program.clear]
    for config, flow in MODELS:
        model = Lowerings(graph_of_config(config), flow).lower(ORDER_TOKENS)
        yield [*model.emit_updates(), *model.forward, *model.backward]
    for flow in ("bidirectional", "right_to_left", (2, 3), OWN):
        program = compile_layer(LAYER, 32, flow)
        yield [*program.forward, *program.load, *program.store]


def used_ports() -> Ports:
    """Return the banks of each port, as if each reached all of them."""
    names = {(port.unit, port.operand, port.stores): port.name for port in M.ports}
    found: Ports = defaultdict(set)
    with mock.patch.object(Instruction, "unreached", lambda self: iter(())):
        for instruction in (i for instructions in programs() for i in instructions):
            for stores, numbers in ((False, instruction.reads()), (True, instruction.writes())):
                for number in numbers:
                    operand = instruction.operands[number]
                    if operand.is_in_bank:
                        found[names[instruction.unit, number, stores]].add(operand.number)
    return found


def listed() -> Ports:
    """Return the banks of each port as config.h lists them."""
    return {port.name: set(port.banks) for port in M.ports}


if __name__ == "__main__":
    used = used_ports()
    for port in M.ports:
        print(f"{port.name}: {', '.join(map(str, sorted(used[port.name])))}")
