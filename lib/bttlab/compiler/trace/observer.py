"""The Python functions that `forward` of a module calls: the variables outside of it that they read, and hooks.

A variable is a global, one of an enclosing function, an attribute of a module or an object, or what an argument holds.
It is compared with itself in the next call for the same sample: a cache that the first call filled is no change.
"""

import contextlib
import dis
import functools
import sys
import sysconfig
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bttlab.compiler.operation import SourceLine
from bttlab.compiler.trace.names import LIBRARIES
from bttlab.compiler.trace.state import MOST, Snapshot, cause

# C functions by which autograd is told to change gradients.
OF_GRADIENTS = frozenset("register_hook register_prehook register_hooks _push_saved_tensors_default_hooks".split())
OF_TENSORS = tuple(f.__code__ for f in (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook))
TO_HOOKS = frozenset((Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.grad_fn.__get__))
MOST_ENTRIES = 64  # of one function whose arguments and enclosing variables are compared
STANDARD = sysconfig.get_paths()["stdlib"]
NUMPY = str(Path(np.__file__).parent)
# Packages that show what a function prints, as a notebook's kernel does. They count it, and give the function no value.
SHOWING = frozenset("IPython ipykernel ipywidgets rich tornado tqdm zmq".split())


@dataclass(frozen=True)
class Reads:
    """The variables that a function reads, with the line that changes it, or else reads it."""

    globals: Mapping[str, int]
    enclosing: Mapping[str, int]
    attributes: Mapping[str, int]
    modules: Mapping[str, int]  # that it imports


@functools.lru_cache(4096)
def reads_of(code: types.CodeType) -> Reads:
    """Return the variables outside of a function that its code reads."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = getattr(instruction, "line_number", instruction.starts_line) or line  # since Python 3.13
        kind = "STORE" if instruction.opname.startswith("STORE_") else instruction.opname
        found[kind].setdefault(instruction.argval, line)

    def of(*kinds: str) -> dict[str, int]:
        return {key: found["STORE"].get(key, line) for kind in kinds for key, line in found[kind].items()}

    of_objects = of("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
    return Reads(of("LOAD_GLOBAL", "LOAD_NAME"), of("LOAD_DEREF"), of_objects, of("IMPORT_NAME"))


@functools.lru_cache(4096)
def _is_of_library(path: str) -> bool:
    """Return whether a file is one of Python, torch, NumPy or of this package, or shows what is printed."""
    _, packages, within = path.rpartition("-packages/")
    is_standard = path.startswith(STANDARD) and not packages
    is_known = is_standard or path.startswith((*LIBRARIES, NUMPY, "<frozen"))
    return is_known or (bool(packages) and within.partition("/")[0] in SHOWING)


@dataclass
class Variable:
    """A variable that a function reads, as it is where the function is called."""

    code: types.CodeType
    line: int
    snapshot: Snapshot
    value: Any = None  # of an argument: another object is no change of this one

    def cause(self, before: "Variable") -> str | None:
        """Return what a refusal says if it has another value than before."""
        old = before.snapshot.values
        places = (key for key, value in self.snapshot.values.items() if old.get(key, value) != value)
        place = next(places, None) if self.value is before.value else None
        if place is None:
            return None
        attribute = place.partition("[")[0].rpartition(".")[2]
        line = SourceLine(self.code.co_filename, reads_of(self.code).attributes.get(attribute, self.line))
        of = "" if self.value is None else f" of {self.code.co_name}"
        return cause(f"{place}{of} ({line})", place in self.snapshot.generators)


class Global(NamedTuple):
    """A global of a function, and the attributes that the function reads, of this or of others."""

    namespace: Mapping[str, Any]
    name: str
    attributes: Collection[str]

    def values(self) -> dict[str, str]:
        """Return the values in it, but for the sizes of containers, which may be caches."""
        found = Snapshot(with_activations=False)
        found.add(self.name, self.namespace.get(self.name), self.attributes)
        return {key: x for key, x in found.values.items() if not key.startswith("the number of items")}


class Hook(NamedTuple):
    """A hook on gradients, or on what is saved for them: the line that registers it, and on what."""

    line: SourceLine | None
    of: Any


class Hooks(TorchFunctionMode):
    """Sees where a run may have registered a hook: it does so, asks for a `grad_fn`, or saves tensors by its own rule.

    `functions`: those of the user that call torch. It costs less than an `Observer`, which sees all, and the hooks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[SourceLine | None] = []
        self.functions: dict[int, types.CodeType] = {}
        self._saves = False

    def __enter__(self) -> "Hooks":
        self._caller = sys._getframe(1)
        return super().__enter__()

    def __torch_function__(self, func: Callable, types: Any, args: Sequence = (), kwargs: dict | None = None) -> Any:
        saves = not self._saves and torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        self._saves = self._saves or saves
        if saves or func in TO_HOOKS:
            self.lines.append(_line_of(sys._getframe(1), self._caller))
        frame = _frame_of(sys._getframe(1), self._caller)
        if frame is not None:
            self.functions[id(frame.f_code)] = frame.f_code
        return func(*args, **(kwargs or {}))


@dataclass
class Observer(contextlib.AbstractContextManager):
    """Sees the Python functions that a run calls in this thread, and the hooks that it registers.

    `known`: modules whose state is compared otherwise. `random`: the line that draws random numbers without a state.
    """

    known: Collection[int] = ()
    hooks: list["Hook"] = field(default_factory=list)
    random: SourceLine | None = None

    def __post_init__(self) -> None:
        self._variables: dict[tuple[types.CodeType, int, str], Variable] = {}
        self._numbers: Counter[types.CodeType] = Counter()  # of entries
        self._count = 0  # of values
        self.globals: list[Global] = []  # that functions of the user read

    def __enter__(self) -> "Observer":
        self._caller = sys._getframe(1)
        self._before = sys.getprofile()
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(None)
        if hasattr(self._before, "enable"):  # cProfile's
            self._before.enable()
        elif self._before is not None:
            sys.setprofile(self._before)

    def _see(self, frame: types.FrameType, event: str, called: Callable | None) -> None:
        if event == "c_call":
            name = getattr(called, "__name__", "")
            if name in OF_GRADIENTS:
                self.hooks.append(Hook(_line_of(frame, self._caller), getattr(called, "__self__", None)))
            elif name == "urandom":
                self.random = _line_of(frame, self._caller)
        elif event != "call":
            return
        elif any(frame.f_code is code for code in OF_TENSORS):
            self.hooks.append(Hook(_line_of(frame, self._caller), frame.f_locals["self"]))
        elif not _is_of_library(frame.f_code.co_filename):
            with torch._C.DisableTorchFunction(), contextlib.suppress(Exception):  # of a user's object, such as its len
                self._enter(frame)

    def _enter(self, frame: types.FrameType) -> None:
        code = frame.f_code
        number, reads = self._numbers[code], reads_of(code)
        self._numbers[code] += 1
        if number >= MOST_ENTRIES or self._count > MOST:
            return
        if not number:
            known = [name for name in reads.globals if not _is_library(frame.f_globals.get(name))]
            self.globals += [Global(frame.f_globals, name, frozenset(reads.attributes)) for name in known]
            modules = {name: sys.modules[name] for name in reads.modules if name in sys.modules}
            names = modules | {name: frame.f_globals[name] for name in reads.globals if name in frame.f_globals}
            for name, value in names.items():
                if not _is_library(value):
                    self._add(code, number, name, (reads.modules | reads.globals)[name], value)
        enclosing = set(reads.enclosing).intersection(code.co_freevars) - {"__class__"}
        count = code.co_argcount + code.co_kwonlyargcount
        if enclosing or count:
            local = frame.f_locals
            frames = self._frames(frame.f_back) if enclosing else ()
            of_this_run = {name for f in frames for name in f.f_code.co_cellvars}
            for name in enclosing.intersection(local).difference(of_this_run):
                self._add(code, number, name, reads.enclosing[name], local[name])
            for name in code.co_varnames[:count]:
                if name in local and self._may_change(local[name]):
                    self._add(code, number, name, code.co_firstlineno, local[name], is_argument=True)

    def _add(
        self, code: types.CodeType, number: int, name: str, line: int, value: Any, is_argument: bool = False
    ) -> None:
        found = Snapshot(with_activations=False)
        found.add(name, value, reads_of(code).attributes)
        self._count += len(found.values)
        if found.values:
            variable = Variable(code, line, found, value if is_argument else None)
            self._variables[code, number, name] = variable

    def _may_change(self, value: Any) -> bool:
        """Return whether an argument is a container or an object that a call may change."""
        if isinstance(value, nn.Module):
            return id(value) not in self.known
        is_other = isinstance(value, Tensor | type | types.FunctionType | bool | int | float | str)
        is_object = hasattr(value, "__dict__") or hasattr(type(value), "__slots__")
        return not is_other and (isinstance(value, list | dict | set | np.ndarray) or is_object)

    @property
    def functions(self) -> Collection[types.CodeType]:
        """The user's functions that were called."""
        return self._numbers.keys()

    def _frames(self, frame: types.FrameType | None) -> Iterator[types.FrameType]:
        """Yield the frames of this run, from one on."""
        while frame is not None and frame is not self._caller:
            yield frame
            frame = frame.f_back

    def cause(self, before: "Observer") -> str | None:
        """Return what a refusal says of a variable that has another value than in the call before."""
        pairs = ((before._variables.get(key), variable) for key, variable in self._variables.items())
        return next((found for old, new in pairs if old is not None and (found := new.cause(old))), None)


def _is_library(value: Any) -> bool:
    """Return whether a value is a module of Python, torch, NumPy or this package, or one of their functions."""
    if not isinstance(value, types.ModuleType):
        return isinstance(value, types.BuiltinFunctionType)
    return value.__name__ in sys.builtin_module_names or _is_of_library(getattr(value, "__file__", None) or "")


def at(line: SourceLine | None) -> str:
    """Return a line as it ends a message."""
    return f" ({line})" if line else ""


def _frame_of(frame: types.FrameType | None, caller: types.FrameType) -> types.FrameType | None:
    """Return the frame of the user's function that runs, if there is one between a frame and the caller's."""
    while frame is not None and frame is not caller and _is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is caller else frame


def _line_of(frame: types.FrameType | None, caller: types.FrameType) -> SourceLine | None:
    """Return the line of the user's file that runs."""
    frame = _frame_of(frame, caller)
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno)
