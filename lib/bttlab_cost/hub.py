"""Models of Hugging Face: find a `config.json`, and count its model's parameters.

transformers counts exactly, for every architecture that it knows (`bttlab_cost.architectures`). Without it a few
families are counted from their shapes, and others are refused.
"""

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bttlab.util.files import read_regular
from bttlab_cost.configuration import MOST_LAYERS, CostError, FineTuning

MOST_BYTES = 1 << 24
MOST_INTEGER = 10**7
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

    Raises
    ------
    CostError
        If the file cannot be read or describes no model that can be counted; the message names the field.
    """
    try:
        given = json.loads(read_regular(path, MOST_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise CostError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CostError(f"{path} is not valid JSON ({error})") from None
    if not isinstance(given, dict):
        raise CostError(f"{path} is no config.json of a transformer: it has no object with fields")
    kind = given.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise CostError(f"{path} is no config.json of a transformer: model_type is {kind!r}, it must name one")
    _check_numbers(path, given)
    if find_spec("transformers"):
        from bttlab_cost.architectures import count

        return count(path, given, TUNING)
    return _known_family(path, given, kind)


def _check_numbers(path: Path, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if isinstance(value, dict):
            _check_numbers(path, value)
        elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST_INTEGER:
            if not name.endswith("_id") and "max" not in name:  # lengths of 10^30 mean that there is no limit
                raise CostError(f"{path}: {name} is {value:.3g}, more than {MOST_INTEGER:,}; correct it")


# Families that are counted without transformers: a model's fields, and what its blocks have beside the matrices.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "vocabulary": ("vocab_size",),
    "expert_hidden": ("intermediate_size", "ffn_dim", "n_inner"),
}
_GATED = ("llama", "mistral", "mixtral", "qwen2", "gemma")
_PLAIN = ("gpt2", "bert", "roberta", "xlm-roberta", "opt")


def _known_family(path: Path, given: Mapping[str, Any], kind: str) -> FineTuning:
    if kind not in _GATED + _PLAIN:
        raise CostError(
            f"{path}: model_type is {kind!r}; without transformers only {', '.join(_GATED + _PLAIN)} are counted: "
            "pip install 'transformers>=5'"
        )

    def number(names: tuple[str, ...] | str, default: int | None = None) -> int:
        names = (names,) if isinstance(names, str) else names
        name = next((name for name in names if given.get(name) is not None), names[0])
        value = given.get(name, default)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise CostError(f"{path}: {name} is {given.get(name)!r}, it must be a whole number from 1 on")
        return value

    for name in ("attention_bias", "mlp_bias"):
        if given.get(name) not in (None, False):
            way_out = "transformers counts it: pip install 'transformers>=5'"
            raise CostError(f"{path}: {name} is {given[name]!r}; {way_out}")
    tied = given.get("tie_word_embeddings", kind in (*_PLAIN, "gemma"))
    if type(tied) is not bool:
        raise CostError(f"{path}: tie_word_embeddings is {tied!r}, it must be true or false")
    experts = number("num_local_experts") if kind == "mixtral" else 1
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if kind != "mixtral" and given.get(name) not in (None, 0, 1):
            raise CostError(f"{path}: {name} is {given[name]!r}, but a {kind} model has no experts; correct model_type")
    hidden = number(_NAMES["hidden"])
    inner = number(_NAMES["expert_hidden"], 4 * hidden if kind == "gpt2" else None)
    layers, heads = number(_NAMES["layers"]), number(_NAMES["heads"])
    if layers > MOST_LAYERS:
        raise CostError(f"{path}: num_hidden_layers is {layers:,}, more than {MOST_LAYERS:,}; correct it")
    head_size, narrow = given.get("head_dim") and number("head_dim"), number("num_key_value_heads", heads)
    other = 0
    if kind == "qwen2":  # biases of queries, keys and values
        other += layers * (hidden + 2 * narrow * (hidden // heads))
    if kind in _PLAIN:
        positions = number(("max_position_embeddings", "n_positions")) + (2 if kind == "opt" else 0)
        other += hidden * positions + layers * (4 * hidden + inner + hidden) + (2 * layers + 1) * hidden
    if kind in ("bert", "roberta", "xlm-roberta"):  # token types, pooler
        other += hidden * number("type_vocab_size", 2) + hidden * (hidden + 1)
    return FineTuning(
        **TUNING,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=number(_NAMES["vocabulary"]),
        experts=experts,
        top_k=number("num_experts_per_tok", 2) if experts > 1 else 1,
        expert_hidden=inner,
        key_value_heads=0 if narrow == heads else narrow,
        mlp="plain" if kind in _PLAIN else "gated",
        tied=tied,
        head_size=0 if not head_size or head_size * heads == hidden else head_size,
        other=other,
    )
