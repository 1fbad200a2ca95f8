"""Compiled programs on disk, in a folder of this user: another process need not compile them again.

An entry is named by the digest of what the program is made of: the model, the choices of the compiler, and the sources
that compile. It is data, compressed, behind its digest: a line of JSON, and the program's image. The folder may be
removed at any time. It is not used if another user could write there.
"""

import functools
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bttlab.compiler.buffers import Buffer
from bttlab.compiler.instruction import At, Bound, Instruction, Level, Memory, Register, TokenOffset
from bttlab.compiler.machine import SOURCE
from bttlab.compiler.memory.layout import Block, Layout
from bttlab.util.files import is_draft, write_file
from bttlab.util.reading import read_bytes
from bttlab.util.trust import changeable_by_others

MOST_BYTES = 64 << 20  # of all entries; a program of the paper's models takes 0.1 MB
MOST_OF_ENTRY = 16 << 20
DIGEST_BYTES = 32
COMPILED_BY = ("compiler", "model", "tensor")  # packages with the sources that make a program
BLOCK_FIELDS = ("name", "shape", "axes", "rows", "group_rows", "first", "last", "offset", "is_repeated")


def key_of(*values: Any) -> str | None:
    """Return the name of an entry, from JSON-ready values; None if one is not."""
    try:
        text = json.dumps([_sources(), values], sort_keys=True)
    except TypeError:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _sources() -> list[str]:
    """Return the digest of the sources that make a program, and the versions of what computes its tables."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    paths = [path for name in COMPILED_BY for path in sorted((package / name).rglob("*.py"))]
    for path in (*paths, SOURCE / "config.h", SOURCE / "isa.h"):
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return [digest.hexdigest(), sys.version, version("numpy"), version("scipy")]


def folder() -> Path:
    """Return the folder of the entries: $BTTLAB_PROGRAMS, or bttlab/programs in the user's cache folder."""
    if given := os.environ.get("BTTLAB_PROGRAMS"):
        return Path(given).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("bttlab") / "programs"


def read_entry(key: str | None) -> tuple[dict[str, Any], bytes] | None:
    """Return an entry's values and image; None if there is none, it is damaged, or others could have written it."""
    if key is None:
        return None
    path = folder() / key
    try:
        if not path.exists() or changeable_by_others(path) is not None:
            return None
        data = read_bytes(path, MOST_OF_ENTRY)
        with suppress(OSError):
            os.utime(path)  # the entries that were used least recently are removed first
    except OSError:
        return None
    digest, data = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
    if hashlib.sha256(data).digest() != digest:
        with suppress(OSError):
            path.unlink()  # else no whole one takes its place
        return None
    values, _, image = zlib.decompress(data).partition(b"\n")
    return json.loads(values), image


def write_entry(key: str | None, values: Mapping[str, Any], image: bytes = b"") -> None:
    """Write an entry, unless it is there, and remove old ones if all take more than MOST_BYTES.

    Nothing is written if the folder cannot be written, others could write there, or a value is not JSON-ready.
    """
    if key is None:
        return
    place = folder()
    try:
        data = zlib.compress(json.dumps(values, separators=(",", ":")).encode() + b"\n" + image, 1)
    except TypeError:
        return
    if DIGEST_BYTES + len(data) > MOST_OF_ENTRY:
        return
    with suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (place / key).exists() and changeable_by_others(place / key) is None:
            write_file(place / key, hashlib.sha256(data).digest() + data)
            _remove_old(place)


def _remove_old(place: Path) -> None:
    left, now = MOST_BYTES, os.stat(place).st_mtime
    found = [(entry.stat(), Path(entry.path)) for entry in os.scandir(place)]
    for status, path in sorted(found, key=lambda entry: entry[0].st_mtime, reverse=True):
        left -= status.st_size
        is_left_over = is_draft(path) and status.st_mtime < now - 3600  # of a process that was killed
        if left < 0 or is_left_over:
            path.unlink(missing_ok=True)


def encoded(instructions: Sequence[Instruction]) -> list[list[Any]]:
    """Return instructions as JSON-ready values."""
    names = [field.name for field in fields(Instruction)]
    return [[_operands(i) if name == "operands" else getattr(i, name) for name in names] for i in instructions]


def _operands(instruction: Instruction) -> list[list[Any]]:
    return [[number, at.memory, at.base, at.strides, at.token_offset] for number, at in instruction.operands.items()]


def decoded(instructions: Sequence[Sequence[Any]]) -> list[Instruction]:
    """Return the instructions that `encoded` was given."""
    return [_instruction(*values) for values in instructions]


def _instruction(unit, operation, loops, operands, label, count, immediates, depth, accumulator, row, *rest) -> Any:
    return Instruction(
        unit,
        operation,
        tuple([Level(name, _bound(bound), _bound(active)) for name, bound, active in loops]),
        {
            number: At(memory and Memory(*memory), base, strides, offset and TokenOffset(*offset))
            for number, memory, base, strides, offset in operands
        },
        tuple(label),
        _bound(count),
        tuple([tuple(value) if isinstance(value, list) else value for value in immediates]),
        tuple(depth),
        accumulator,
        row and tuple(row),
        *rest,
    )


def _bound(value: Any) -> Bound | Any:
    return Register(*value) if isinstance(value, list) else value


def encoded_layout(layout: Layout) -> dict[str, Any] | None:
    """Return a layout as JSON-ready values; None if it has values of its own, as that of a traced module."""
    if layout.constants or layout.copies or layout.folded or layout.partial or layout.in_records:
        return None
    buffers = list(dict.fromkeys(block.buffer for block in layout.blocks))
    return {
        "shapes": layout.shapes,
        "buffers": [[b.name, b.vectors, b.number, b.is_accumulated, b.bank, b.base] for b in buffers],
        "blocks": [
            [buffers.index(block.buffer), *(getattr(block, name) for name in BLOCK_FIELDS)] for block in layout.blocks
        ],
    }


def decoded_layout(values: Mapping[str, Any]) -> Layout:
    """Return the layout that `encoded_layout` was given."""
    buffers = [
        Buffer(name, vectors, number, is_parameter=True, is_accumulated=is_accumulated, bank=bank, base=base)
        for name, vectors, number, is_accumulated, bank, base in values["buffers"]
    ]
    blocks = [
        Block(name, buffers[buffer], tuple(shape), tuple(axes), *rest)
        for buffer, name, shape, axes, *rest in values["blocks"]
    ]
    shapes = {name: tuple(shape) for name, shape in values["shapes"].items()}
    return Layout(shapes, {}, {}, {}, frozenset(), tuple(blocks))
