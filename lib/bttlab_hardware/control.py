"""State machine of the kernel's source outside its loop.

Each basic block becomes a sequence of states. Integer operations are chained within a state as far as the clock allows;
loads, FP32 operations and AXI transfers take states of their own. Nothing is pipelined: commands, samples' records and
losses take a small part of the time, the loop takes the rest.
"""

from collections import defaultdict
from pathlib import Path

from bttlab_hardware import latencies
from bttlab_hardware.compile import compile_function
from bttlab_hardware.graph import FLOATS, callee
from bttlab_hardware.ir import Instruction, Value, read_module
from bttlab_hardware.memories import Access, Memories, Memory
from bttlab_hardware.places import Places
from bttlab_hardware.pragmas import read_pragmas
from bttlab_hardware.types import element_bits
from bttlab_hardware.widths import constant_number

KERNEL, LOOP = "trainer", "machine_loop"
LOOP_ARGUMENTS = ("section", "sample")  # of run() in machine.h: the loop's inputs and results are named after them


class States:
    """The schedule of a kernel's source by state; the loop is a call.

    Parameters
    ----------
    source : Path
    shared : set of Memory
        Memories of the loop, which the state machine accesses between the loop's runs.
    mhz : float

    Attributes
    ----------
    function : Function
    access : dict of Instruction to Access
    fixed : set of Memory
        Memories that become registers, since all their addresses are constants.
    arguments : dict of str to Value
        Arguments of the call of the loop.
    issue, home : dict of Instruction to int
        State in which an instruction takes its operands, and state from which its result is available.
    block : dict of Value to str
        Block of an instruction.
    first, last : dict of str to int
        First and last state of a block; state 0 waits for a command.
    waits : set of int
        States that last until an operation is done.
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

    # --- accesses to memories

    def _accesses(self, everything: list[Instruction]) -> dict[Instruction, Access]:
        found = {i: self.memories.access(i) for i in everything if i.opcode in ("load", "store")}
        read = {access.memory for i, access in found.items() if i.opcode == "load"}
        # Stores to memories that nothing reads are dropped.
        return {
            i: a
            for i, a in found.items()
            if a.memory in read or self.is_shared(a.memory) or _is_argument(a) or self._is_local(i)
        }

    def _with_fixed_addresses(self) -> set[Memory]:
        """Return the memories that become registers, since all their addresses are constants."""
        variable = {a.memory for a in self.access.values() if a.address or a.address is None}
        return {a.memory for a in self.access.values()} - variable - self.shared

    def is_port(self, instruction: Instruction) -> bool:
        """Return True if an instruction loads or stores through one of the kernel's pointers: an AXI transfer."""
        return instruction in self.access and _is_argument(self.access[instruction])

    def _is_local(self, instruction: Instruction) -> bool:
        """Return True if an instruction accesses a variable that is an argument of the loop."""
        return self.memories.pointer(instruction)[0] in self._loop_operands

    # --- schedule

    def _delay(self, instruction: Instruction) -> float:
        """Return the delay of an integer operation in nanoseconds."""
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
        """Return the latency of an FP32 operation; 0 for other operations."""
        opcode = instruction.opcode
        kind = FLOATS.get(opcode) or ("fconvert" if opcode in ("sitofp", "uitofp") else None)
        return latencies.cycles(kind) if kind else 0

    def _place(self, label: str) -> None:
        """Assign every instruction of a block to a state."""
        first = self.count
        self.first[label] = first
        floor = latest = first  # no access is issued before `floor`; all results are available from `latest`
        ends: dict[Value, float] = {}  # nanoseconds into its state at which chained logic ends
        waits: set[int] = set()
        taken: dict[object, dict[int, object]] = defaultdict(dict)  # for each port: its access in each state
        last_access: dict[tuple[Memory, str], int] = {}  # state of the last load, and of the last store

        def earliest(values: list[Value], least: int) -> tuple[int, float]:
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
                state, _ = earliest(values, max(floor, latest))
                self.issue[instruction] = state
                floor = latest = state + 1
                if not callee(instruction).startswith("llvm.memset"):
                    waits.add(state + 1)
                    floor = latest = state + 2
                self.home[instruction] = state + 1
            elif access:
                memory = access.memory
                state, _ = earliest(values, max(floor, last_access.get((memory, "store"), first - 1) + 1))
                if opcode == "store":
                    state = max(state, last_access.get((memory, "load"), first))
                if memory not in self.fixed:
                    does = (self._key(access), values[0] if opcode == "store" else memory)
                    state = port("host" if self.is_shared(memory) else (memory, opcode), state, does)
                last_access[memory, opcode] = state
                self.issue[instruction] = state
                self.home[instruction] = state + self._load_cycles(memory) if opcode == "load" else state
                latest = max(latest, self.home[instruction])
            else:
                state, begun = earliest(values, first)
                if begun + self._delay(instruction) > self._budget and begun:
                    state, begun = earliest(values, state + 1)
                self.issue[instruction] = self.home[instruction] = state
                ends[instruction] = begun + self._delay(instruction)
                latest = max(latest, state)
        _, end = earliest(self._leaving(label), max(floor, latest)), max(floor, latest)
        self.last[label] = max(end, earliest(self._leaving(label), end)[0])
        self.waits |= waits
        self.count = self.last[label] + 1

    def number(self, state: int) -> str:
        """Return a state's number as a Verilog constant."""
        return f"{(self.count - 1).bit_length()}'d{state}"

    def _leaving(self, label: str) -> list[Value]:
        """Return the values that the end of a block reads: its condition, and operands of its successors' phis."""
        values = list(self.function.blocks[label][-1].operands)
        for target in self.function.successors(label):
            for phi in (i for i in self.function.blocks[target] if i.opcode == "phi"):
                values += [v for v, b in zip(phi.operands, phi.blocks, strict=True) if b == label]
        return values

    def is_shared(self, memory: Memory) -> bool:
        """Return True if a memory belongs to the loop."""
        return memory in self.shared

    def _load_cycles(self, memory: Memory) -> int:
        if memory in self.fixed:
            return 0
        return latencies.read_cycles(memory.implementation, memory.latency) + 1 if self.is_shared(memory) else 1

    def _key(self, access: Access) -> tuple:
        return (access.offset, *access.address)

    def address(self, instruction: Instruction, access: Access) -> list[tuple[int, Value]]:
        """Return the address as factors and values: words of a memory, or bytes after a pointer."""
        if self.is_port(instruction):
            return list(self.memories.pointer(instruction)[2])
        return list(access.address or ())


def _is_argument(access: Access) -> bool:
    return access.memory.implementation == "argument"
