"""Models by name, and from a command line's words."""

import json
from dataclasses import fields, replace
from pathlib import Path

from bttlab_cost.configuration import CostError, FineTuning

# Shapes of Mixtral 8x7B (Jiang et al., arXiv 2401.04088, table 1); fine-tuned as in arXiv 2408.04693.
_MIXTRAL = FineTuning(
    32, 4096, 32, 8, 2, 14_336, 512, "qlora", 16, 32_000, key_value_heads=8, adapted="experts", precision="bf16",
    checkpointing=True, padding="longest",
)  # fmt: skip
# Shapes of BlackMamba 630M/2.8B (its config.json; arXiv 2402.01771): pairs of a Mamba block and a mixture of experts.
_BLACKMAMBA = FineTuning(
    18, 1472, 16, 8, 1, 3872, 512, vocabulary=50_304, mixer="mamba", precision="bf16", padding="longest", state="bf16"
)
# Shapes of Llama 2 7B (Touvron et al., arXiv 2307.09288).
_LLAMA = FineTuning(
    32, 4096, 32, 1, 1, 11_008, 512, "lora", 16, 32_000, precision="bf16", checkpointing=True, padding="longest",
    kernels="flash",
)  # fmt: skip
MODELS = {
    "tiny": FineTuning(3, 128, 4, 8, 2, 256),
    "small": FineTuning(6, 256, 8, 8, 2, 512, sequence_length=128),
    "base": FineTuning(12, 768, 12, 8, 2, 2048, sequence_length=512, vocabulary=32_000),
    "mixtral-8x7b": _MIXTRAL,
    "blackmamba-2.8b": _BLACKMAMBA,
    "llama-2-7b": _LLAMA,
}
_WORDS = {"yes": True, "no": False}


def find_model(text: str) -> FineTuning:
    """Return the model that a word means: a name, then changes of it, as "small,top_k=8,method=lora".

    A name that ends in .json is a `config.json` of Hugging Face: `read_config`.

    Raises
    ------
    CostError
        If there is no such model or field, or they make no model.
    """
    name, *changes = text.split(",")
    base = read_config(Path(name)) if name.endswith(".json") else MODELS.get(name)
    if base is None:
        raise CostError(f"model {name!r} is none of {', '.join(MODELS)}; change one of them, as small,layers=4,top_k=1")
    kinds = {field.name: field.type for field in fields(FineTuning)}
    values: dict[str, int | str | bool] = {}
    for change in changes:
        field, _, value = change.partition("=")
        if field not in kinds:
            raise CostError(f"model {text!r}: {field!r} is none of {', '.join(kinds)}")
        if kinds[field] is int and value.isdecimal():
            values[field] = int(value)
        else:
            values[field] = _WORDS.get(value, value) if kinds[field] is bool else value
    return replace(base, **values)


_PLAIN = set("gpt2 bert roberta distilbert opt gpt_neo gpt_neox gptj falcon mpt phi bloom".split())
# Whose configurations do not say that embedding and output are one matrix.
_TIED = set("gpt2 gpt_neo bert roberta distilbert opt mpt falcon bloom gemma gemma2 gemma3_text".split())
_FIELDS = {  # of `FineTuning`: names that configurations have for it
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocabulary": ("vocab_size",),
}


def read_config(path: Path) -> FineTuning:
    """Return the model of a `config.json` of Hugging Face, fine-tuned with LoRA in BF16 with FlashAttention.

    Feed-forward layers of two matrices, tied outputs, grouped queries, heads of another width, experts, learned
    positions and biases are counted.

    Raises
    ------
    CostError
        If the file cannot be read, or has no shapes of a transformer.
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        given = given.get("text_config", given)
        found = {name: next(given[key] for key in keys if key in given) for name, keys in _FIELDS.items()}
    except (OSError, ValueError, AttributeError, StopIteration) as error:
        raise CostError(f"{path} is no config.json of a transformer ({error or 'a shape is missing'})") from None
    kind, hidden, layers = given.get("model_type", ""), found["hidden"], found["layers"]
    plain = kind in _PLAIN
    names = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim")
    inner = next((given[key] for key in names if given.get(key)), 4 * hidden)
    experts = given.get("num_local_experts") or given.get("num_experts") or 1
    inner = given.get("moe_intermediate_size", inner) if experts > 1 else inner
    narrow = given.get("num_key_value_heads") or (1 if given.get("multi_query") else found["heads"])
    head_size = given.get("head_dim") or 0
    other = 0
    if kind in ("gpt2", "bert", "roberta", "opt"):
        positions = given.get("max_position_embeddings") or given.get("n_positions") or 0
        other += hidden * (positions + (2 if kind == "opt" else 0))
        other += layers * (4 * hidden + inner + hidden) + (2 * layers + 1) * hidden  # biases, of norms too
    tied = given.get("tie_word_embeddings", kind in _TIED)
    if kind in ("bert", "roberta"):
        other += hidden * given.get("type_vocab_size", 2) + hidden * (hidden + 1)  # token types, pooler
    return FineTuning(
        **found,
        experts=experts,
        top_k=given.get("num_experts_per_tok") or 1,
        expert_hidden=inner,
        sequence_length=512,
        method="lora",
        lora_rank=16,
        key_value_heads=0 if narrow == found["heads"] else narrow,
        precision="bf16",
        checkpointing=True,
        mlp="plain" if plain else "gated",
        tied=bool(tied),
        head_size=0 if head_size * found["heads"] == hidden else head_size,
        other=other,
        kernels="flash",
    )
