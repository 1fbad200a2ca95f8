"""Models by name, and from a command line's words."""

from dataclasses import fields, replace

from bttlab_cost.configuration import CostError, FineTuning
from bttlab_cost.hub import TUNING, find_config, read_config

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
_TUNED = (
    *TUNING,
    "adapted",
    "padding",
    "state",
    "accumulation",
    "optimizer",
    "offload",
)  # fields that are no shape of the model


def find_model(text: str) -> FineTuning:
    """Return the model that a word means: a name, then changes of it, as "small,top_k=8,method=lora".

    The path of a `config.json` of Hugging Face, of a folder with one, and the name of a model in its local cache mean
    that model, fine-tuned with LoRA in BF16 with FlashAttention. Raises CostError if there is no such model or field,
    or they make no model.
    """
    name, *changes = map(str.strip, text.split(","))
    base = MODELS.get(name)
    if base is None:
        path = find_config(name)
        if path is None:
            raise CostError(
                f"model {name!r} is none of {', '.join(MODELS)}, and neither a config.json, a folder with one, nor a "
                "name in the local cache of Hugging Face; change one of them, as small,layers=4,top_k=1"
            )
        base = read_config(path)
    defaults = {field.name: field.default for field in fields(FineTuning) if field.name not in ("linears", "windows")}
    values: dict[str, int | str | bool] = {}
    for change in changes:
        field, _, value = change.partition("=")
        if field not in defaults:
            raise CostError(f"model {text!r}: {field!r} is none of {', '.join(defaults)}")
        if base.counted and field not in _TUNED:
            raise CostError(
                f"{field}: the shapes of {name} are counted; change its config.json, or {', '.join(_TUNED)}"
            )
        if field in values:
            raise CostError(f"model {text!r}: {field} is given twice; leave one out")
        if type(defaults[field]) is bool and value not in _WORDS:
            raise CostError(f"{field} {value!r}: choose yes or no")
        values[field] = int(value) if value.isdecimal() else _WORDS.get(value, value)
    config = replace(base, **values)
    full = config.method == "full"
    for field, is_used in (
        ("lora_rank", not full),
        ("adapted", not full),
        ("state", full and config.precision == "bf16"),
    ):
        if field in values and not is_used:
            raise CostError(
                f"{field} has no effect with method={config.method},precision={config.precision}; leave it out"
            )
    return config
