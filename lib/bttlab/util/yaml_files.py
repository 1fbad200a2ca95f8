"""YAML files whose numbers may be 1e-3, as in version 1.2, and that have no key twice; a BOM is skipped."""

import re
from pathlib import Path
from typing import Any

import yaml

from bttlab.util.errors import BttlabError
from bttlab.util.files import read_text


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise yaml.YAMLError(f"line {line} has the key {key.value} a second time; leave one of them")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+\Z")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file; BttlabError if it cannot be read, or is none."""
    try:
        return yaml.load(read_text(path), _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BttlabError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
