"""Hostile variants of sound files: of bytes, and of JSON by its structure."""

import json
import random
from collections.abc import Sequence
from typing import Any

INTEGERS = (
    *(0, 1, 2, 7, 127, 128, 255, 256, 32767, 32768, 65535, 65536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1),
)
HEAD = 2048  # bytes in which sizes and offsets stand
_NEST, _LONG = "nested here", "a long number here"


def mutate_bytes(data: bytes, draw: random.Random, tokens: Sequence[bytes]) -> bytes:
    """Return bytes with a few faults: flipped, overwritten, cut, doubled, moved, with foreign tokens."""
    copy = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        size = len(copy)
        at = draw.randrange(min(size, HEAD) if draw.random() < 0.5 else size) if size else 0
        span = slice(at, at + draw.choice((1, 2, 8, 64, 1024)))
        match draw.randrange(8):
            case 0 if size:
                copy[at] ^= 1 << draw.randrange(8)
            case 1:
                copy[span] = draw.randbytes(draw.choice((1, 2, 8)))
            case 2:
                width = draw.choice((1, 2, 4, 8))
                value = draw.choice((*INTEGERS, size, size + 1, at)) % 256**width
                copy[at : at + width] = value.to_bytes(width, draw.choice(("little", "big")))
            case 3:
                del copy[at:]
            case 4:
                del copy[span]
            case 5:
                copy[at:at] = copy[span] * draw.choice((1, 2, 100))
            case 6:
                other = draw.randrange(size + 1)
                copy[other:other] = copy[span]
            case _:
                copy[at:at] = draw.choice(tokens) * draw.choice((1, 1, 3, 5000))
    return bytes(copy)


def mutate_json(values: Any, draw: random.Random) -> str:
    """Return the JSON of values of which one or a few, at any depth, have become something else."""
    values = json.loads(json.dumps(values))
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        holder, key = _place(values, draw)
        if holder is None:
            return json.dumps(_odd(draw))
        match draw.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[_odd_text(draw)] = holder.pop(key)
            case 2 if isinstance(holder, list):
                holder[key:key] = [holder[key]] * draw.choice((1, 5, 50))
            case 3:
                holder[key] = _NEST
            case _:
                holder[key] = _odd(draw)
    depth = draw.choice((1, 50, 1000, 100_000))
    left, right = draw.choice((("[", "]"), ('{"a":', "}")))
    text = json.dumps(values).replace(f'"{_NEST}"', left * depth + "1" + right * depth)
    return text.replace(f'"{_LONG}"', "9" * 5000)  # more digits than Python takes


def _place(values: Any, draw: random.Random) -> tuple[Any, Any]:
    """A container within values, and a key or index of it; (None, None) if there is none."""
    holder, key = None, None
    while isinstance(values, dict | list) and values:
        holder, key = values, draw.choice(list(values) if isinstance(values, dict) else range(len(values)))
        values = holder[key]
        if draw.random() < 0.3:
            break
    return holder, key


def _odd(draw: random.Random) -> Any:
    number = draw.choice(INTEGERS)
    odd = (None, True, False, number, -number, number + 0.5, _LONG, 1e308, float("nan"), float("inf"), [], {}, [[]])
    return draw.choice((*odd, _odd_text(draw), [number] * 3, {"name": number}))


def _odd_text(draw: random.Random) -> str:
    texts = ("", " ", "\0", "a\nb", "\x1b[31m", "\ud800", "\u202e", "..", "../x.xclbin", "/etc/passwd", "0" * 64)
    return draw.choice((*texts, "x" * 20_000, chr(draw.randrange(0x110000))))
