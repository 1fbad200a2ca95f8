"""Train text models of transformers on the emulated card, and write which of them the card takes.

python tools/architectures.py --train builds each architecture with small sizes and random parameters, traces it with
each of its heads, and trains it for a few steps on the emulated card and in PyTorch. It writes data/architectures.json.
With names behind --train, these rows of the record are made again.
The table of docs/tensor.md is written from this record; without --train the table alone.
"""

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pages import filled

from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.places import ROOT
from bttlab.util.terminal import say

RECORD, PAGE = ROOT / "data" / "architectures.json", "docs/tensor.md"
TOKENS, STEPS, RATE = 12, 8, 1e-3
NEAR = 1e-3  # largest difference of a loss from PyTorch's, relative
ARCHITECTURES = """
    albert apertus arcee bert bert-generation big_bird biogpt bitnet bloom camembert cohere cohere2 ctrl data2vec-text
    deberta deberta-v2 diffllama distilbert electra ernie esm falcon flaubert fnet gemma gemma2 gemma3_text glm gpt2
    gpt_bigcode gpt_neo gpt_neox gptj granite helium ibert llama longformer mamba megatron-bert mistral mixtral
    mobilebert modernbert mpnet mpt nemotron nystromformer olmo olmo2 openai-gpt opt persimmon phi phi3 qwen2 qwen3
    rembert roberta roberta-prelayernorm roformer rwkv smollm3 squeezebert stablelm starcoder2 t5 umt5 xglm xlm
    xlm-roberta yoso
""".split()
SIZES: dict[str, Any] = {  # by the names that configurations have for them; a name that one lacks is left out
    "vocab_size": 60,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "d_kv": 16,
    "intermediate_size": 96,
    "d_ff": 96,
    "d_inner": 96,
    "n_inner": 96,
    "ffn_dim": 96,
    "ffn_hidden_size": 96,
    "hidden_dim": 96,
    "max_position_embeddings": 64,
    "embedding_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_local_experts": 2,
}
OWN: dict[str, dict[str, Any]] = {  # of architectures whose sizes have other names or rules
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8},
    "ctrl": {"dff": 96},
    "t5": {"decoder_start_token_id": 0},
    "apertus": {"hidden_act": "silu"},
    "gemma2": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
}
ALWAYS = {"num_labels": 5, "problem_type": "single_label_classification", "use_cache": False}
HEADS = {  # column of the table: transformers' mapping
    "a label of the text": "SEQUENCE_CLASSIFICATION",
    "labels of tokens": "TOKEN_CLASSIFICATION",
    "next token": "CAUSAL_LM",
}
TRAINS, FROZEN = "trains", "trains; parameters that its forward does not use are frozen first"


def trained(name: str) -> dict[str, str]:
    """Train an architecture with each of its heads; return for each head TRAINS or why not, in one line."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto as auto

    from bttlab.compiler.trace import trace

    kind = type(transformers.AutoConfig.for_model(name))
    known, found = kind(), {}
    fixed = {key for key in SIZES if getattr(getattr(kind, key, None), "fset", True) is None}  # computed from others
    config = kind(
        **{key: SIZES[key] for key in SIZES if hasattr(known, key) and key not in fixed}, **OWN.get(name, {}), **ALWAYS
    )
    for head, mapping in HEADS.items():
        names = getattr(auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
        if name not in names:
            continue
        cls = getattr(transformers, names[name] if isinstance(names[name], str) else names[name][0])
        try:
            torch.manual_seed(0)
            model = cls(config).eval()
            unused = freeze_unused(model)
            difference = compared(trace(model, TOKENS))
            found[head] = FROZEN if unused else TRAINS
            if not difference <= NEAR:
                found[head] = f"differs: a loss is {difference:.0e} from PyTorch's"
        except BttlabError as error:
            found[head] = f"refused: {' '.join(str(error).split())}"
        except Exception as error:  # of transformers, as the architecture is built
            found[head] = f"not traced: {_line(error)}"
    return found


def compared(model: Any) -> float:
    """Train on the emulated card and in PyTorch; return the largest relative difference of a loss."""
    import numpy as np

    from bttlab.card import EmulatedU50, open_trainer
    from bttlab.data import Samples
    from bttlab.model import Optimizer
    from bttlab.model.reference import ReferenceTrainer

    random = np.random.default_rng(0)
    lengths = random.integers(4, TOKENS + 1, STEPS).astype(np.int32)
    inside = np.arange(TOKENS) < lengths[:, None]
    tokens = np.where(inside, random.integers(3, SIZES["vocab_size"], inside.shape), 0).astype(np.int32)
    slots = np.where(inside & (np.arange(TOKENS) > 0), random.integers(0, max(model.slots, 1), inside.shape), 0)
    intents = random.integers(0, max(model.intents, 1), STEPS).astype(np.int32)
    samples = Samples(tokens, lengths, intents, slots.astype(np.int32))
    card, reference = open_trainer(model, EmulatedU50()), ReferenceTrainer(model)
    card.load_parameters(model.parameters())
    on_card, in_pytorch = (one.train(samples, Optimizer("adamw"), RATE) for one in (card, reference))
    return float(np.max(np.abs(on_card - in_pytorch) / np.abs(in_pytorch)))


def freeze_unused(model: Any) -> bool:
    """Freeze the parameters that get no gradient in PyTorch; return whether there are any."""
    import torch

    model(torch.ones(1, TOKENS, dtype=torch.long)).logits.sum().backward()
    unused = [parameter for parameter in model.parameters() if parameter.grad is None]
    for parameter in unused:
        parameter.requires_grad_(False)
    model.zero_grad()
    return bool(unused)


def measured(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Train architectures; return the rows of the record."""
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    rows = {}
    for name in names:
        try:
            rows[name] = trained(name)
        except Exception as error:  # of transformers, at a configuration of these sizes
            rows[name] = {"": f"not built: {_line(error)}"}
        say(f"{name}: {rows[name]}")
    return rows


def table(record: dict[str, Any]) -> str:
    """Return the lists of what trains, with which heads, and the table of what does not, with the reason."""
    trained, lines = {}, ["| architecture | refused | because |", "|---|---|---|"]
    for name, heads in record["rows"].items():
        outcomes = set(heads.values())
        if outcomes <= {TRAINS, FROZEN}:
            trained.setdefault(FROZEN in outcomes, []).append(f"`{name}`")
            continue
        refused = {head: why for head, why in heads.items() if why not in (TRAINS, FROZEN)}
        which = "all heads" if len(refused) == len(heads) else ", ".join(refused)
        first = sorted(refused.values(), key=lambda why: not why.startswith("refused"))[0]
        reason = first.partition(": ")[2].replace("|", "\\|")
        lines.append(f"| `{name}` | {which} | {reason} |")
    names = {frozen: ", ".join(found) for frozen, found in trained.items()}
    count = sum(len(found) for found in trained.values())
    architectures = f"{len(record['rows'])} architectures of transformers {record['versions']['transformers']}"
    text = [
        f"Of {architectures}, {count} train with each of their heads ({', '.join(HEADS)}).",
        f"*Measured*: {record['how']}.",
        "",
        "| | architectures |",
        "|---|---|",
        f"| as they are | {names.get(False, 'none')} |",
        f"| with parameters frozen that `forward` does not use | {names.get(True, 'none')} |",
    ]
    return "\n".join([*text, "", *lines, ""])


def write(root: Path = ROOT) -> None:
    """Write the table into the page of a folder."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    page = root / PAGE
    write_file(page, filled(page.read_text(encoding="utf-8"), {"architectures": table(record)}, PAGE))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train", nargs="*", metavar="NAME", help="train these again, by default all")
    names = parser.parse_args().train
    if names is not None:
        import transformers

        if unknown := sorted(set(names) - set(ARCHITECTURES)):
            parser.error(f"no architecture is named {', '.join(unknown)}: choose {', '.join(ARCHITECTURES)}")
        old = json.loads(RECORD.read_text(encoding="utf-8"))
        if names and old["versions"]["transformers"] != transformers.__version__:
            parser.error(f"the record is of transformers {old['versions']['transformers']}: train all again")
        record = {
            "about": "Made by: python tools/architectures.py --train",
            "versions": {"transformers": transformers.__version__},
            "sizes": SIZES | OWN | ALWAYS,
            "provenance": "measured",
            "how": f"{STEPS} steps of AdamW on the emulated card; each loss is within {NEAR:.1%} of PyTorch's",
            "rows": {name: old["rows"].get(name) for name in ARCHITECTURES} | measured(names or ARCHITECTURES),
        }
        write_file(RECORD, json.dumps(record, indent=1) + "\n")
    write()


if __name__ == "__main__":
    main()
