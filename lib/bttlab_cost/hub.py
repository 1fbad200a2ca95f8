"""Models of Hugging Face: find a `config.json`, and let transformers count its model's parameters."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bttlab.util.plugins import missing_package
from bttlab.util.reading import MOST_OF_SETTINGS, parse_json, read_bytes
from bttlab_cost.configuration import CostError, FineTuning

# How a model of a config.json is fine-tuned, unless the user says otherwise.
TUNING: dict[str, Any] = {
    "sequence_length": 512,
    "method": "lora",
    "lora_rank": 16,
    "precision": "bf16",
    "checkpointing": True,
    "kernels": "flash",
}


def find_config(name: str) -> Path | None:
    """Return the config.json that a path, a folder or a name in the local cache of Hugging Face means, or None."""
    path = Path(name).expanduser()
    if name.endswith(".json"):
        return path
    if (path / "config.json").exists():
        return path / "config.json"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and find_spec("huggingface_hub"):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "config.json")
        return Path(cached) if isinstance(cached, str) else None
    return None


def read_config(path: Path) -> FineTuning:
    """Return the model of a config.json.

    Raises CostError if the file cannot be read or describes no model that can be counted.
    """
    try:
        given = parse_json(read_bytes(path, MOST_OF_SETTINGS).decode("utf-8-sig"))
    except OSError as error:
        raise CostError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CostError(f"{path} is not valid JSON ({error})") from None
    kind = given.get("model_type") if isinstance(given, dict) else None
    if not isinstance(kind, str) or not kind:
        raise CostError(f"{path} is no config.json of a transformer: model_type is {kind!r}, it must name one")
    try:
        from bttlab_cost.architectures import count
    except ModuleNotFoundError as error:
        raise CostError(f"{path}: {missing_package(error, 'to count its parameters')}") from None
    except ImportError as error:  # of a release that does not suit torch
        raise CostError(f"{path}: transformers, which counts its parameters, does not start ({error})") from None
    return count(path, given, TUNING)
