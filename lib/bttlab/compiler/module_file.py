"""Load a PyTorch module from a Python file: read the file once, run exactly these bytes, and trace the module."""

import builtins
import hashlib
import importlib.abc
import importlib.util
import inspect
import json
import random
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.module import ModuleModel
from bttlab.compiler.module_state import names_in_state, put_values, values_of
from bttlab.compiler.trace import trace
from bttlab.model.threads import one_thread
from bttlab.util.errors import BttlabError
from bttlab.util.reading import MOST_OF_SETTINGS, read_bytes

SEQUENCE = 32  # sequence length of a module without an attribute `sequence_length`
MOST_TOKENS = 1 << 12
PREFIX = "bttlab_module_"  # of the name that a file is imported as


def read_source(path: Path) -> bytes:
    """Return a Python file's content.

    Parameters
    ----------
    path : path
        Of the file.

    Returns
    -------
    bytes
        The content.

    Raises
    ------
    BttlabError
        If it cannot be read.
    """
    try:
        return read_bytes(path, MOST_OF_SETTINGS)
    except FileNotFoundError:
        raise BttlabError(f"there is no {path}; give FILE.py:CLASS") from None
    except OSError as error:
        raise BttlabError(f"{path} cannot be read ({error.strerror}); give FILE.py:CLASS") from None


def load_module(name: str, sequence_length: int | None = None, seed: int = 0, task: str | None = None) -> ModuleModel:
    """Load the module that FILE.py:CLASS names, as `module_of_source` does.

    Parameters
    ----------
    name : str
        Path of the file, a colon, and the name of a class or of a function that returns a module.
    sequence_length, seed, task : optional
        As for `module_of_source`.

    Returns
    -------
    ModuleModel
        The traced module.

    Raises
    ------
    BttlabError
        If the file cannot be read, and where `module_of_source` raises it.
    """
    path, _, name = name.rpartition(":")
    return module_of_source(read_source(Path(path)), Path(path), name, sequence_length, seed, task=task)


def module_digest(source: bytes, files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of a module's file and of those that it imports from its folder.

    Parameters
    ----------
    source : bytes
        Content of the module's file.
    files : mapping of str to bytes
        Contents of the others, by their paths in the folder.

    Returns
    -------
    str
        Hexadecimal.
    """
    digest = hashlib.sha256(source).hexdigest()
    if not files:
        return digest
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return hashlib.sha256(json.dumps([digest, digests], sort_keys=True).encode()).hexdigest()


def module_of_source(
    source: bytes,
    path: Path,
    name: str,
    sequence_length: int | None = None,
    seed: int = 0,
    files: Mapping[str, bytes] | None = None,
    task: str | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> ModuleModel:
    """Run a file's code, construct a class of it and trace the module.

    Parameters
    ----------
    source : bytes
        The file's content, which is run.
    path : path
        Of the file, for messages and `__file__`.
    name : str
        Of the class, or of a function that returns a module; it is called without arguments.
    sequence_length : int, optional
        As for `bttlab.trace`; by default the module's attribute of this name, else 32.
    seed : int
        Of the generators of random numbers that PyTorch, NumPy (`np.random.randn` and so on) and Python's `random`
        share with the whole process. It is set before the file is run and again before the module is constructed; their
        states are restored afterwards.
    files : mapping of str to bytes, optional
        The files that it imports, by their paths in its folder; by default those that are there.
    task : str, optional
        As for `bttlab.trace`; by default the module's attribute of this name. The module's attribute `ignore_index` is
        as for `bttlab.trace`, too.
    values : mapping of str to np.ndarray, optional
        Buffers and parameters that take the place of the module's own before it is traced, by name.

    Returns
    -------
    ModuleModel
        The traced module.

    Raises
    ------
    BttlabError
        If the code raises an error, has no such class, or the card has no operation for a part of the module; or if the
        module does not have one of `values`.
    """
    where, beside = f"{path}:{name}", _FilesBeside(path.parent, files)
    with _in_one_line(where, path), one_thread(), _generators_restored(), beside.importable():
        _seed(seed)
        code = _run(source, path, beside)
        made = getattr(code, name, None)
        if not callable(made):
            classes = [key for key, value in vars(code).items() if _is_own_class(value, code)]
            raise BttlabError(f"{path} has no class {name}; there are: {', '.join(classes) or 'none'}")
        try:
            inspect.signature(made).bind()
        except TypeError as error:
            raise BttlabError(f"{where} is called without arguments ({error}): give them defaults") from None
        _seed(seed)
        module = made()
        if not isinstance(module, nn.Module):
            raise BttlabError(f"{where} returns {type(module).__name__}: it must return an nn.Module")
        length = getattr(module, "sequence_length", SEQUENCE) if sequence_length is None else sequence_length
        if not isinstance(length, int) or not 2 <= length <= MOST_TOKENS:
            raise BttlabError(f"{where}: sequence_length is {length!r}, it must be from 2 to {MOST_TOKENS}")
        if (missing := put_values(module, values or {})) is not None:
            raise BttlabError(f"{where} has no {missing} of the shape that is to be loaded; load values of this module")
        kept, names = values_of(module), names_in_state(module)
        model = trace(module, length, task or getattr(module, "task", None), getattr(module, "ignore_index", None))
    return replace(
        model,
        module=f"{path.name}:{name}",
        module_sha256=module_digest(source, beside.imported),
        source=source,
        files=dict(beside.imported),
        path=path,
        seed=seed,
        values=kept,
        names=names,
    )


def with_seed(model: ModuleModel, seed: int) -> ModuleModel:
    """Return the model of the same file with the initial values of another seed.

    Parameters
    ----------
    model : ModuleModel
        A model; one that does not come from a file, or has this seed, is returned as it is.
    seed : int
        As for `module_of_source`.

    Returns
    -------
    ModuleModel
        The model.

    Raises
    ------
    BttlabError
        As `module_of_source` does, or if the file makes a model of other sizes with this seed.
    """
    if not model.source or model.seed == seed:
        return model
    task = next((task for task in model.tasks if task != "classification"), None)
    other = module_of_source(
        model.source, model.path, model.title, model.sequence_length, seed, files=model.files, task=task
    )
    if other.config != model.config:
        raise BttlabError(f"{model.module} makes a model of other sizes with seed {seed} than with seed {model.seed}")
    return other


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the generator that the module's file may draw from)
    random.seed(seed)


@contextmanager
def _generators_restored() -> Iterator[None]:
    """Restore the states of the generators of random numbers that the whole process has."""
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(of_numpy)  # noqa: NPY002
            random.setstate(of_python)


@contextmanager
def _in_one_line(where: str, path: Path) -> Iterator[None]:
    """Turn any error of the user's code into a one-line error with the line number in the file."""
    try:
        yield
    except ProgramError as error:
        raise ProgramError(f"{where}{_line(error.__cause__, path)}: {error}") from None
    except BttlabError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit in the file must not end the process that loads it
        raise BttlabError(f"{where}{_line(error, path)}: {type(error).__name__}: {error}") from None


def _line(error: BaseException | None, path: Path) -> str:
    """Return the last line of a file in an error's traceback, as text."""
    frames = traceback.extract_tb(error.__traceback__) if error else []
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


class _Loader(importlib.abc.ExecutionLoader):
    """Loads code from bytes: it reads neither the file, which may have changed, nor a bytecode cache."""

    def __init__(self, source: bytes, path: Path, beside: "_FilesBeside"):
        self._source, self._path, self._beside = source, path, beside

    def exec_module(self, module: Any) -> None:
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._beside.import_module}
        super().exec_module(module)

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._source)


class _FilesBeside(importlib.abc.MetaPathFinder):
    """Finds the modules of one folder before all others, and keeps what was imported of them."""

    def __init__(self, folder: Path, files: Mapping[str, bytes] | None):
        self._folder, self._files = folder, files
        self.imported: dict[str, bytes] = {}
        self._modules: dict[str, Any] = {}  # that were made of these files

    def import_module(self, *arguments: Any, **options: Any) -> Any:
        """Import as `__import__` does; for import statements of these files, those that run later included."""
        if self in sys.meta_path:
            return builtins.__import__(*arguments, **options)
        with self.importable():
            return builtins.__import__(*arguments, **options)

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Import from the folder, not from modules of the same names that were imported from elsewhere."""
        before = dict(sys.modules)
        for name, module in before.items():
            if isinstance(getattr(module, "__loader__", None), _Loader) or self._shadows(name, module):
                del sys.modules[name]
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            for name, module in list(sys.modules.items()):
                if isinstance(getattr(module, "__loader__", None), _Loader) and not name.startswith(PREFIX):
                    self._modules[name] = sys.modules.pop(name)
            sys.modules.update({name: module for name, module in before.items() if name not in sys.modules})

    def _shadows(self, name: str, module: Any) -> bool:
        """Return whether a module that is no installed one has the name of a file in the folder."""
        file = getattr(module, "__file__", None)
        if file is None or name.startswith((PREFIX, "bttlab")) or Path(file).is_relative_to(sys.base_prefix):
            return False
        return "site-packages" not in Path(file).parts and self._source(name.replace(".", "/")) is not None

    def _source(self, stem: str) -> tuple[str, bytes] | None:
        for name in (f"{stem}.py", f"{stem}/__init__.py"):
            if self._files is not None and name in self._files:
                return name, self._files[name]
            if self._files is None and (self._folder / name).is_file():
                return name, read_source(self._folder / name)
        return None

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        found = self._source(fullname.replace(".", "/"))
        if found is None:
            return None
        name, self.imported[found[0]] = found[0], found[1]
        loader = _Loader(found[1], self._folder / name, self)
        return importlib.util.spec_from_loader(fullname, loader, is_package=name.endswith("__init__.py"))


def _run(source: bytes, path: Path, beside: _FilesBeside) -> Any:
    name = f"{PREFIX}{hashlib.sha256(source).hexdigest()[:12]}"
    spec = importlib.util.spec_from_loader(name, _Loader(source, path, beside))
    code = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look up their module there
    spec.loader.exec_module(code)
    return code


def _is_own_class(value: Any, code: Any) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module) and value.__module__ == code.__name__
