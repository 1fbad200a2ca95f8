"""Write the table of docs/tensor.md: which published models of BERT's family the card trains, and at which ranks.

python tools/published_models.py compiles each model of data/published_models.json again and writes both. Weights are
drawn at random: shapes and vocabularies are the published ones, and what fits depends on nothing else.
"""

import json
from pathlib import Path

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
)

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.program import Options, compile
from bttlab.compiler.space import LARGEST_BANK
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace
from bttlab.tensor import TTLinear, TTMEmbedding, choose_modes, cut_vocabulary
from bttlab.tensor.shapes import table_modes
from bttlab.util.files import write_file

ROOT = Path(__file__).parent.parent
RECORD, PAGE = ROOT / "data" / "published_models.json", ROOT / "docs" / "tensor.md"
MARKS = "<!-- published_models -->\n", "<!-- end -->\n"
TOKENS, SAMPLE = 32, 16  # of the longest sample, and of the one whose cycles are counted
RANKS = (64, 48, 32, 24, 16, 12, 8, 6, 4)
TABLE_RANK = 32  # the largest of a table
MODELS = {  # layers, hidden size, heads: google/bert_uncased_L-*_H-*, distilbert-base-uncased, all-MiniLM-L6-v2
    "BERT-tiny": (2, 128, 2),
    "BERT-mini": (4, 256, 4),
    "BERT-small": (4, 512, 8),
    "MiniLM": (6, 384, 12),
    "DistilBERT": (6, 768, 12),
}
HEADER = (
    "| model | table of tokens | rank | parameters | vectors | instructions | cycles, 16 tokens | AdamW |",
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
)


def model_of(name: str) -> nn.Module:
    layers, hidden, heads = MODELS[name]
    torch.manual_seed(0)
    if name == "DistilBERT":
        sizes = DistilBertConfig(n_layers=layers, dim=hidden, n_heads=heads, hidden_dim=4 * hidden, num_labels=4)
        return DistilBertForSequenceClassification(sizes).eval()
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return BertForSequenceClassification(BertConfig(**sizes, intermediate_size=4 * hidden, num_labels=4)).eval()


def compress(model: nn.Module, rank: int, with_table: bool) -> None:
    """Replace layers by tensor-train layers of fresh cores: shapes as of `bttlab.tensor.compress`, without its SVDs."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and layer.out_features > 4:
                sizes = layer.in_features, layer.out_features
                modes = [choose_modes(size, 3) for size in reversed(sizes)]
                setattr(parent, name, TTLinear(*sizes, *modes, rank))
    if with_table:
        name, table = next((n, m) for n, m in model.named_modules() if m is model.get_input_embeddings())
        parent, _, key = name.rpartition(".")
        modes = table_modes(table.num_embeddings, 3), choose_modes(table.embedding_dim, 3)
        rank = min(rank, TABLE_RANK)
        setattr(model.get_submodule(parent), key, TTMEmbedding(table.num_embeddings, table.embedding_dim, *modes, rank))


def entry(name: str, rows: int, rank: int) -> dict:
    """Compile a model with a dense table of `rows` rows, or one in tensor format of all; raise ProgramError."""
    model = model_of(name)
    if rows:
        cut_vocabulary(model, range(rows))
    if rank:
        compress(model, rank, not rows)
    program = compile(trace(model, TOKENS), Options())
    return {
        "model": name,
        "rows": rows,
        "rank": rank,
        "parameters": sum(p.numel() for p in model.parameters()),
        "vectors": program.layout.vectors,
        "instructions": sum(map(len, program.sections)),
        "cycles": int(time_program(program.sample, SAMPLE).cycles),
        "adamw": program.layout.has_moments,
        "program": program.sha256,
    }


def largest(name: str, rows: int, ranks: tuple[int, ...] = RANKS) -> dict:
    """Return the entry of the largest rank that fits, or why the smallest does not."""
    for rank in ranks:
        try:
            return entry(name, rows, rank)
        except ProgramError as error:
            reason = str(error)
    return {"model": name, "rows": rows, "rank": 0, "reason": reason}


def line(found: dict) -> str:
    table = f"{found['rows']:,} rows, dense" if found["rows"] else "30,522 rows, TTM"
    if "reason" in found:
        return f"| {found['model']} | {table} | none |  |  |  |  | {found['reason']} |"
    counts = (f"{found[key]:,}" for key in ("parameters", "vectors", "instructions", "cycles"))
    rank, adamw = found["rank"] or "dense", "yes" if found["adamw"] else "no: SGD"
    return " | ".join([f"| {found['model']}", table, str(rank), *counts, f"{adamw} |"])


def main() -> None:
    found = [largest("BERT-tiny", 1000, (0,))]
    for name in MODELS:
        rows = min(1000, LARGEST_BANK * M.LANES // MODELS[name][1])  # a table is in one bank
        found += [largest(name, 0), largest(name, rows)]
        print(line(found[-2]), line(found[-1]), sep="\n", flush=True)
    write_file(RECORD, json.dumps(found, indent=1) + "\n")
    text, (start, end) = PAGE.read_text(encoding="utf-8"), MARKS
    before, rest = text.split(start)
    after = rest.split(end, 1)[1]
    table = "\n".join([*HEADER, *map(line, found)])
    write_file(PAGE, f"{before}{start}\n{table}\n\n{end}{after}")


if __name__ == "__main__":
    main()
