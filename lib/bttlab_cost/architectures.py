"""Count the parameters of any architecture that transformers knows, on the meta device, without weights."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto

from bttlab_cost.configuration import MOST_LAYERS, CostError, FineTuning

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "moe_top_k", "num_experts_per_token", "moe_topk", "top_k")
_ROUTES = {"nllb-moe": 2, "switch_transformers": 1}  # experts of a token where no field says it
_OTHER_INPUTS = re.compile(r"(^|[._])(vision|visual|image|audio|speech|multi_modal|mm_)")  # not of text
_ATTENTION = re.compile(r"(^|[._])(self_?attn|attn|attention|.*attention)([._]|$)", re.IGNORECASE)
_QUERIES = {"q_proj", "v_proj", "query", "value", "q", "v", "q_lin", "v_lin", "qkv_proj", "query_key_value", "Wqkv"}
_QUERIES |= {"c_attn", "qkv", "q_b_proj", "kv_b_proj"}
# Blocks that mix tokens otherwise than by attention: counted, but their step is not modelled.
_UNMODELLED = re.compile(r"mamba|rwkv|xlstm|recurrent|deltanet|lightning|shortconv|hyena", re.IGNORECASE)
_TEXT_CONFIGS = ("text_config", "language_config", "llm_config")
_VISION_SHAPES = ("hidden_size", "num_hidden_layers", "intermediate_size")


def count(path: Path, given: Mapping[str, Any], tuning: Mapping[str, Any]) -> FineTuning:
    """Return the model of a config.json's content, with exactly counted parameters, and fields of `FineTuning`.

    A vision tower counts if its own fields give its shape; the tokens of text do not pass through it. The path is for
    messages. Raises CostError if transformers does not know the architecture, or a field is not what the architecture
    takes.
    """
    config = _configuration(path, given)
    text = config.get_text_config(decoder=True) if config.is_encoder_decoder else config.get_text_config()
    _check_fields(path, given, text)
    model = _build(path, given, config)
    unmodelled = sorted({type(m).__name__ for m in model.modules() if _UNMODELLED.search(type(m).__name__)})
    parameters = {name: parameter.numel() for name, parameter in model.named_parameters()}  # tied ones once
    vision = sum(number for name, number in parameters.items() if _OTHER_INPUTS.search(name))
    total = sum(parameters.values())
    output = model.get_output_embeddings()
    if given.get("tie_word_embeddings") is False and output is not None:
        if output.weight is model.get_input_embeddings().weight:  # transformers ties T5's, whatever the file says
            total += output.weight.numel()
    if vision and not _has_vision_shapes(given):
        total -= vision
    lacks = [
        name
        for field, name in (("num_attention_heads", "no attention heads"), ("vocab_size", "no vocabulary"))
        if not isinstance(getattr(text, field, None), int)
    ]
    if unmodelled or lacks:
        raise CostError(
            f"{path}: model_type {given['model_type']!r} has {total:,} parameters, but its step is not modelled "
            f"({', '.join(unmodelled) or f'it has {lacks[0]}'}); blackmamba-2.8b is a model of that kind"
        )
    return FineTuning(**tuning, **_shapes(path, config, text, model), counted=total)


def _configuration(path: Path, given: Mapping[str, Any]) -> Any:
    transformers.logging.set_verbosity_error()
    kind = given["model_type"]
    fields = {name: value for name, value in given.items() if name not in ("model_type", "quantization_config")}
    try:
        config = transformers.AutoConfig.for_model(kind, **fields)
        config.get_text_config().to_dict()  # an error if it is none
        return config
    except Exception as error:  # of many kinds: a field of a wrong type, an unknown architecture
        if kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
            release = transformers.__version__
            raise CostError(
                f"{path}: model_type {kind!r} is unknown to transformers {release}; a newer one may know it"
            ) from None
        raise _refused(path, error) from None


def _refused(path: Path, error: Exception) -> CostError:
    return CostError(f"{path}: transformers cannot read it: {type(error).__name__}: {error}")


def _check_fields(path: Path, given: Mapping[str, Any], text: Any) -> None:
    """Raise CostError if the file lacks the shape of its text model, or has fields that its architecture lacks."""
    fields = next((given[name] for name in _TEXT_CONFIGS if isinstance(given.get(name), dict)), given)
    for name in ("num_hidden_layers", "hidden_size"):
        own = text.attribute_map.get(name, name)
        if hasattr(text, name) and name not in fields and own not in fields:
            raise CostError(f"{path}: {own} is missing; a config.json of a {given['model_type']} model has it")
        value = getattr(text, name, 1)
        if type(value) is int and (value < 1 or (name == "num_hidden_layers" and value > MOST_LAYERS)):
            most = f", and at most {MOST_LAYERS:,}" if value > 1 else ""
            raise CostError(f"{path}: {own} is {value:,}, it must be at least 1{most}")
    heads, shared = (getattr(text, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    if isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared:
        raise CostError(f"{path}: num_key_value_heads is {shared}, it must divide num_attention_heads, {heads}")
    experts = next((value for name in _EXPERTS if (value := _field(text, name))), None)
    for name in _TOP_K:
        if experts and name in fields and (value := _field(text, name)) and value > experts:
            raise CostError(f"{path}: {name} is {value}, but the model has {experts} experts")
    for name in _EXPERTS:
        if fields.get(name) not in (None, 0, 1) and not hasattr(type(text)(), text.attribute_map.get(name, name)):
            value = str(fields[name])[:40]
            raise CostError(f"{path}: {name} is {value}, but a {given['model_type']} model has no such field")


def _build(path: Path, given: Mapping[str, Any], config: Any) -> nn.Module:
    known = [name for name in given.get("architectures") or () if isinstance(name, str)]
    named = next((getattr(transformers, name) for name in known if hasattr(transformers, name)), None)
    kind = type(config)
    if named is None:
        masked = kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING
        if config.is_encoder_decoder and kind in modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
            named = transformers.AutoModelForSeq2SeqLM
        elif kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING and not (masked or config.is_encoder_decoder):
            named = transformers.AutoModelForCausalLM
        else:
            named = transformers.AutoModel
    build = named.from_config if hasattr(named, "from_config") else named
    for _ in range(2):
        try:
            with torch.device("meta"):
                return build(config)
        except AttributeError as error:
            if error.name != "rope_theta":  # of DBRX, whose reader forgets the default; it has no parameters
                raise _refused(path, error) from None
            error.obj.rope_theta = 10_000.0
        except Exception as error:  # shapes that do not fit one another
            raise _refused(path, error) from None
    raise _refused(path, ValueError("rope_theta"))


def _has_vision_shapes(given: Mapping[str, Any]) -> bool:
    vision = given.get("vision_config")
    return not isinstance(vision, dict) or all(name in vision for name in _VISION_SHAPES) or "depth" in vision


def _shapes(path: Path, config: Any, text: Any, model: nn.Module) -> dict[str, Any]:
    output = model.get_output_embeddings()
    linears: Counter[tuple[int, int, str, int]] = Counter()
    routed = expert_layers = 0
    repeats = text.num_hidden_layers // getattr(text, "num_hidden_groups", text.num_hidden_layers)  # ALBERT's layers
    for name, module in model.named_modules():
        if module is output or _OTHER_INPUTS.search(name):
            continue
        if name.rpartition(".")[2] == "experts":
            routed += sum(parameter.numel() for parameter in module.parameters() if parameter.dim() > 1)
            expert_layers += 1
        elif isinstance(module, nn.Linear | transformers.pytorch_utils.Conv1D) and ".experts." not in name:
            outputs, inputs = module.weight.shape if isinstance(module, nn.Linear) else module.weight.shape[::-1]
            last = name.rpartition(".")[2]
            kind = "queries" if last in _QUERIES else "mixer" if _ATTENTION.search(name) else "mlp"
            uses = repeats if "layer_groups" in name else 1
            linears[inputs, outputs, kind, uses] += uses
    hidden, heads = text.hidden_size, text.num_attention_heads
    layers = text.num_hidden_layers
    if config.is_encoder_decoder:
        encoder = getattr(config, "encoder", config)
        layers += getattr(encoder, "num_hidden_layers", layers)
    experts = next((value for name in _EXPERTS if (value := _field(text, name)) and routed), 1)
    shapes = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "vocabulary": text.vocab_size,
        "head_size": _head_size(text) or hidden // heads,
        "tied": bool(text.tie_word_embeddings),
        "linears": tuple((i, o, number, kind, uses) for (i, o, kind, uses), number in linears.items()),
        "windows": _windows(text),
        "mlp": "gated",
    }
    inner = _field(text, "intermediate_size") or max((o for _, o, kind, _ in linears if kind == "mlp"), default=hidden)
    if not routed:
        products = sum(i * o * number for (i, o, kind, _), number in linears.items() if kind == "mlp")
        shapes["mlp"] = "gated" if products > 2.5 * layers * hidden * inner else "plain"
    if routed:
        top_k = next((value for name in _TOP_K if (value := _field(text, name))), _ROUTES.get(config.model_type))
        if top_k is None:
            raise CostError(
                f"{path}: {_TOP_K[0]} is missing: it says to how many of its {experts} experts a token goes"
            )
        inner = max(1, round(routed / expert_layers / experts / (3 * hidden)))
        shapes |= {"experts": experts, "top_k": top_k, "expert_layers": expert_layers}
    else:
        shapes |= {"experts": 1, "top_k": 1}
    return shapes | {"expert_hidden": inner}


def _head_size(text: Any) -> int | None:
    """Return the width of a head; of latent attention the mean of that of queries and keys, and that of values.

    Of the latter `head_dim` is the part of the queries that has positions.
    """
    parts = [_field(text, f"{name}_head_dim") for name in ("qk_nope", "qk_rope", "v")]
    if all(parts):
        return sum(filter(None, parts)) // 2
    return _field(text, "head_dim") or _field(text, "d_kv")


def _windows(text: Any) -> tuple[tuple[int, int], ...]:
    """Return the window of the layers that have one, in tokens, and their number."""
    window = _field(text, "sliding_window")
    if window is None or getattr(text, "use_sliding_window", True) is False:
        return ()
    types = getattr(text, "layer_types", None)
    layers = text.num_hidden_layers if types is None else types.count("sliding_attention")
    return ((window, layers),) if layers else ()


def _field(text: Any, name: str) -> int | None:
    for holder in (text, getattr(text, "ffn_config", None)):  # DBRX has one of its own
        value = getattr(holder, name, None)
        if type(value) is int and value > 0:
            return value
    return None
