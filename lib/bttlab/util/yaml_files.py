"""YAML as version 1.2 has it: 1e-3 is a number, only true and false are booleans, no key twice, a BOM is skipped."""

import re
from pathlib import Path
from typing import Any

import yaml

from bttlab.util.errors import BttlabError
from bttlab.util.reading import MOST_OF_SETTINGS, read_text

MOST_NODES = 100_000


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise yaml.YAMLError(f"line {line} has the key {key.value} a second time; leave one of them")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


# Tags of plain values: the core schema of YAML 1.2, of which a date or yes, no, on and off are text.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(node.value, 8 if node.value.startswith("0o") else 16 if node.value.startswith("0x") else 10)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(re.sub(r"\.(?=inf|nan)", "", node.value.lower()))


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


def _count(node: yaml.Node, counted: dict[int, int]) -> int:
    """Return the number of nodes below one and itself, of which each alias is another."""
    known = counted.get(id(node))
    if known == 0:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1} has an alias of itself")
    if known is not None:
        return known
    counted[id(node)] = 0  # until it is counted
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    counted[id(node)] = count = 1 + sum(_count(child, counted) for child in children)
    return count


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file; BttlabError if it cannot be read, or is none.

    A node that has an anchor counts at each of its aliases, since what is made of the value may copy it.
    """
    text = read_text(path, most=MOST_OF_SETTINGS)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > MOST_NODES:
            raise yaml.YAMLError(f"with its aliases written out it has more than {MOST_NODES:,} values")
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BttlabError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
