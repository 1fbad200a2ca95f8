"""Models by name, and from a command line's words."""

from dataclasses import fields, replace

from bttlab.cost.configuration import CostError, FineTuning

MODELS = {
    "tiny": FineTuning(3, 128, 4, 8, 2, 256),
    "small": FineTuning(6, 256, 8, 8, 2, 512, sequence_length=128),
    "base": FineTuning(12, 768, 12, 8, 2, 2048, sequence_length=512, vocabulary=32_000),
    # Shapes of Mixtral 8x7B (Jiang et al., arXiv 2401.04088, table 1), but for its grouped keys and values.
    "mixtral-8x7b": FineTuning(32, 4096, 32, 8, 2, 14_336, 512, "lora", 16, 32_000),
}


def find_model(text: str) -> FineTuning:
    """Return the model that a word means: a name, then changes of it, as "small,top_k=8,method=lora".

    Raises
    ------
    CostError
        If there is no such model or field, or they make no model.
    """
    name, *changes = text.split(",")
    if name not in MODELS:
        raise CostError(f"model {name!r} is none of {', '.join(MODELS)}; change one of them, as small,layers=4,top_k=1")
    kinds = {field.name: field.type for field in fields(FineTuning)}
    values: dict[str, int | str] = {}
    for change in changes:
        field, _, value = change.partition("=")
        if field not in kinds:
            raise CostError(f"model {text!r}: {field!r} is none of {', '.join(kinds)}")
        values[field] = int(value) if kinds[field] is int and value.isdecimal() else value
    return replace(MODELS[name], **values)
