"""JSON that anybody may have written: bounded before it is parsed, checked after it, with a checksum."""

import hashlib
import json
from typing import Any

from bttlab.util.errors import BttlabError
from bttlab.util.quantities import finite

MOST_NODES, MOST_DEPTH = 200_000, 32  # of a value, containers and leaves together
MOST_INTEGER = 1 << 128
CHECKSUM = "sha256"


class JsonError(BttlabError, ValueError):
    """JSON that is malformed, larger than any of ours, or changed since it was written."""


def load_json(data: bytes | str, most_nodes: int = MOST_NODES) -> Any:
    """Parse JSON.

    Raises
    ------
    JsonError
        If it is malformed, or breaks a rule of `check_tree`.
    """
    try:
        data = data.encode() if isinstance(data, str) else data
        nodes = sum(data.count(mark) for mark in (b",", b"[", b"{"))  # at least as many as the value has
        if nodes > most_nodes:
            raise JsonError(f"it has some {nodes:,} values, more than {most_nodes:,}")
        value = json.loads(data.decode())
    except JsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise JsonError(f"it is no JSON ({error})") from None
    check_tree(value, most_nodes)
    return value


def check_tree(value: Any, most_nodes: int = MOST_NODES, most_integer: int = MOST_INTEGER) -> None:
    """Check a value of nested lists and dictionaries.

    Raises
    ------
    JsonError
        If it has too many values, is nested too deeply, or has an integer that is too large, text with a lone
        surrogate, or a value that JSON does not have.
    """
    stack, count = [(value, 1)], 0
    while stack:
        node, depth = stack.pop()
        count += 1
        if count > most_nodes or depth > MOST_DEPTH:
            raise JsonError(f"it has more than {most_nodes:,} values, or more than {MOST_DEPTH} inside one another")
        if isinstance(node, dict):
            stack += [(one, depth + 1) for pair in node.items() for one in pair]
        elif isinstance(node, list):
            stack += [(one, depth + 1) for one in node]
        elif isinstance(node, str):
            if any("\ud800" <= character <= "\udfff" for character in node):
                raise JsonError(f"the text {node[:40]!r} has a lone surrogate")
        elif isinstance(node, int):
            if abs(node) >= most_integer:
                raise JsonError(f"an integer has {node.bit_length()} bits, more than {most_integer.bit_length() - 1}")
        elif node is not None and not isinstance(node, float):
            raise JsonError(f"a value is a {type(node).__name__}, which JSON does not have")


def with_checksum(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with a SHA-256 over all of them."""
    return {**values, CHECKSUM: _digest(values)}


def without_checksum(values: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return values without their checksum, and whether they had one; files of older versions have none.

    Raises
    ------
    JsonError
        If the values are not those that were written.
    """
    if CHECKSUM not in values:
        return values, False
    rest = {key: value for key, value in values.items() if key != CHECKSUM}
    if values[CHECKSUM] != _digest(rest):
        raise JsonError(f"its content was changed or damaged; to keep a change made by hand, delete its {CHECKSUM!r}")
    return rest, True


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(finite(values), sort_keys=True, allow_nan=False).encode()).hexdigest()
