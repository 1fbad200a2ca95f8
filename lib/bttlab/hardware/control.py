"""State machine of a kernel's source outside of its loop.

Each block of LLVM's control flow is a few states. Integer operations are chained in a state as far as the clock allows;
loads, FP32 operations and transfers by AXI take states of their own. Nothing is pipelined: commands, samples' records
and losses take a small part of the time, the loop the rest.
"""

from collections import defaultdict
from pathlib import Path

from bttlab.hardware import latencies
from bttlab.hardware.compile import compile_function
from bttlab.hardware.graph import FLOATS, callee
from bttlab.hardware.ir import Instruction, Value, read_module
from bttlab.hardware.memories import Access, Memories, Memory
from bttlab.hardware.places import Places
from bttlab.hardware.pragmas import read_pragmas
from bttlab.hardware.types import element_bits
from bttlab.hardware.widths import constant_number

KERNEL, LOOP = "trainer", "machine_loop"
LOOP_ARGUMENTS = ("section", "sample")  # of run() in machine.h, by which the loop's inputs and results are called


class States:
    """The states of a kernel's source, in which the loop is a call.

    Parameters
    ----------
    source : Path
    shared : set of Memory
        Memories of the loop; the state machine fills or reads them between its runs.
    mhz : float

    Attributes
    ----------
    function : Function
    access : dict of Instruction to Access
    fixed : set of Memory
        Memories whose words are registers: every address is a constant.
    arguments : dict of str to Value
        What the loop is called with.
    issue, home : dict of Instruction to int
        State in which an instruction takes its operands, and in which its result is there.
    block : dict of Value to str
        Block of an instruction.
    first, last : dict of str to int
        States of a block; state 0 waits for a command.
    waits : set of int
        States that last until something is over.
    """

    def __init__(self, source: Path, shared: set[Memory], mhz: float) -> None:
        module, preprocessed = compile_function(source, KERNEL)
        self.module, self.shared = read_module(module), shared
        (self.function,) = [f for f in self.module.functions if f.name == KERNEL]
        self.places = Places(self.module.metadata)
        self.memories = Memories(self.module, read_pragmas(preprocessed))
        self._budget = latencies.Clock(mhz).budget
        everything = [i for block in self.function.blocks.values() for i in block]
        call = next(i for i in everything if callee(i) == LOOP)
        self.arguments = dict(zip(LOOP_ARGUMENTS, call.operands, strict=False))
        self._loop_operands = {o.name if o.kind == "instruction" else o.text for o in self.arguments.values()}
        self.access = self._accesses(everything)
        self.fixed = self._with_fixed_addresses()
        self.issue: dict[Instruction, int] = {}
        self.home: dict[Value, int] = {}
        self.block: dict[Value, str] = {}
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.waits: set[int] = set()
        self.count = 1
        for label in self.function.blocks:
            self._place(label)

    # --- what is asked of memories

    def _accesses(self, everything: list[Instruction]) -> dict[Instruction, Access]:
        found = {i: self.memories.access(i) for i in everything if i.opcode in ("load", "store")}
        read = {access.memory for i, access in found.items() if i.opcode == "load"}
        # Copies of a table that no unit reads are not built.
        return {
            i: a
            for i, a in found.items()
            if a.memory in read or self.is_shared(a.memory) or _is_argument(a) or self._is_local(i)
        }

    def _with_fixed_addresses(self) -> set[Memory]:
        """Memories whose words are registers: every address is a constant."""
        variable = {a.memory for a in self.access.values() if a.address or a.address is None}
        return {a.memory for a in self.access.values()} - variable - self.shared

    def is_port(self, instruction: Instruction) -> bool:
        """Return whether it loads or stores behind one of the kernel's pointers."""
        return instruction in self.access and _is_argument(self.access[instruction])

    def _is_local(self, instruction: Instruction) -> bool:
        """Return whether it reads or writes what the loop gets as an argument."""
        return self.memories.pointer(instruction)[0] in self._loop_operands

    # --- when

    def _delay(self, instruction: Instruction) -> float:
        """Nanoseconds of an integer operation."""
        opcode, operands = instruction.opcode, instruction.operands
        constants = [constant_number(o.text) for o in operands if o.kind == "constant"]
        number = next((abs(c) for c in constants if c is not None), None)
        if opcode == "mul" and number is not None:
            return max(0, number.bit_count() - 1) * latencies.delay("add", 32)
        if opcode in ("shl", "lshr", "ashr", "and", "or", "xor", "extractelement", "insertelement") and constants:
            return 0.0
        kinds = {"add": "add", "sub": "add", "sdiv": "add", "srem": "add", "mul": "multiply", "icmp": "compare"}
        kinds |= {"select": "select", "and": "logic", "or": "logic", "xor": "logic", "insertelement": "compare"}
        kinds |= dict.fromkeys(("shl", "lshr", "ashr"), "shift") | {"extractelement": "select"}
        bits = 6 if kinds.get(opcode) == "shift" else element_bits(operands[0].type) if opcode in kinds else 1
        return latencies.delay(kinds.get(opcode, "wire"), bits, 16 if opcode == "extractelement" else 2)

    def cycles(self, instruction: Instruction) -> int:
        """Return the latency of an FP32 operation; 0 for all others."""
        opcode = instruction.opcode
        kind = FLOATS.get(opcode) or ("fconvert" if opcode in ("sitofp", "uitofp") else None)
        return latencies.cycles(kind) if kind else 0

    def _place(self, label: str) -> None:
        """Give every instruction of a block its state."""
        first = self.count
        self.first[label] = first
        floor = latest = first  # nothing is asked before `floor`; all that was asked is there in `latest`
        ends: dict[Value, float] = {}  # of chained logic, in its state
        waits: set[int] = set()
        taken: dict[object, dict[int, object]] = defaultdict(dict)  # of a port: what it does in a state
        asked: dict[tuple[Memory, str], int] = {}  # last load, last store

        def there(values: list[Value], least: int) -> tuple[int, float]:
            own = [v for v in values if self.block.get(v) == label]
            state = max([least, *(self.home[v] for v in own)])
            while state in waits:
                state += 1
            return state, max([0.0, *(ends.get(v, 0.0) for v in own if self.home[v] == state)])

        def port(key: object, state: int, does: object) -> int:
            while state in waits or taken[key].get(state, does) != does:
                state += 1
            taken[key][state] = does
            return state

        for instruction in self.function.blocks[label]:
            opcode = instruction.opcode
            self.block[instruction] = label
            if opcode == "phi" or opcode in ("getelementptr", "alloca") or callee(instruction).startswith("llvm.life"):
                self.home[instruction] = first
                continue
            access = self.access.get(instruction)
            values = list(instruction.operands)
            if access:
                values = values[: opcode == "store"] + [v for _, v in self.address(instruction, access)]
            if opcode in ("br", "switch", "ret") or (opcode == "store" and access is None):
                continue
            if self.cycles(instruction) or self.is_port(instruction) or opcode == "call":
                state, _ = there(values, max(floor, latest))
                self.issue[instruction] = state
                floor = latest = state + 1
                if not callee(instruction).startswith("llvm.memset"):
                    waits.add(state + 1)
                    floor = latest = state + 2
                self.home[instruction] = state + 1
            elif access:
                memory = access.memory
                state, _ = there(values, max(floor, asked.get((memory, "store"), first - 1) + 1))
                if opcode == "store":
                    state = max(state, asked.get((memory, "load"), first))
                if memory not in self.fixed:
                    does = (self._key(access), values[0] if opcode == "store" else memory)
                    state = port("host" if self.is_shared(memory) else (memory, opcode), state, does)
                asked[memory, opcode] = state
                self.issue[instruction] = state
                self.home[instruction] = state + self._load_cycles(memory) if opcode == "load" else state
                latest = max(latest, self.home[instruction])
            else:
                state, begun = there(values, first)
                if begun + self._delay(instruction) > self._budget and begun:
                    state, begun = there(values, state + 1)
                self.issue[instruction] = self.home[instruction] = state
                ends[instruction] = begun + self._delay(instruction)
                latest = max(latest, state)
        _, end = there(self._leaving(label), max(floor, latest)), max(floor, latest)
        self.last[label] = max(end, there(self._leaving(label), end)[0])
        self.waits |= waits
        self.count = self.last[label] + 1

    def number(self, state: int) -> str:
        """Return a state as Verilog has it."""
        return f"{(self.count - 1).bit_length()}'d{state}"

    def _leaving(self, label: str) -> list[Value]:
        """Values that the end of a block reads: its condition, and those that the next blocks take."""
        values = list(self.function.blocks[label][-1].operands)
        for target in self.function.successors(label):
            for phi in (i for i in self.function.blocks[target] if i.opcode == "phi"):
                values += [v for v, b in zip(phi.operands, phi.blocks, strict=True) if b == label]
        return values

    def is_shared(self, memory: Memory) -> bool:
        """Return whether the loop has a memory."""
        return memory in self.shared

    def _load_cycles(self, memory: Memory) -> int:
        if memory in self.fixed:
            return 0
        return latencies.read_cycles(memory.implementation, memory.latency) + 1 if self.is_shared(memory) else 1

    def _key(self, access: Access) -> tuple:
        return (access.offset, *access.address)

    def address(self, instruction: Instruction, access: Access) -> list[tuple[int, Value]]:
        """Return the values of an address, each so many times: words of a memory, or bytes behind a pointer."""
        if self.is_port(instruction):
            return list(self.memories.pointer(instruction)[2])
        return list(access.address or ())


def _is_argument(access: Access) -> bool:
    return access.memory.implementation == "argument"
