"""Count a machine that streams frozen weights from HBM, and write the figures of docs/accelerator.md.

python tools/streamed_weights.py compiles the adapters of a model of 6 encoders x 384 (all-MiniLM-L6-v2's shape). It
adds the products of its frozen matrices by the machine's rules, with loads as steps of a new unit. It writes
data/streamed_weights.json and the table. All figures are modelled; no such machine is built.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.machine import M
from bttlab.compiler.program import Options, compile
from bttlab.compiler.timing import time_program
from bttlab.compiler.trace import trace
from bttlab.estimate.card import estimate
from bttlab.estimate.constants import read_data
from bttlab.estimate.facts import U50
from bttlab.estimate.geometry import blocks
from bttlab.estimate.recorded import machine_record
from bttlab.estimate.resources import resources
from bttlab.model import Optimizer
from bttlab.tensor import TTLinear, choose_modes
from bttlab.util.files import write_file

ROOT = Path(__file__).parent.parent
RECORD, PAGE = ROOT / "data" / "streamed_weights.json", ROOT / "docs" / "accelerator.md"
MARKS = "<!-- streamed_weights -->\n", "<!-- end -->\n"
ENCODERS, HIDDEN, HEADS, WORDS, TOKENS, RANK = 6, 384, 12, 30522, 13, 8
VECTOR_BYTES, BITS = 4 * M.LANES, 32 * M.LANES
HALVES = 2  # of the buffer of streamed weights: one is loaded, one is read
PORTS = (1, 2, 4)  # ports to HBM for weights: one for both engines, one each, two each
HBM_GB_S = 316  # of all 32 pseudo-channels (AMD, DS965)
GPU, GPU_SHARE = "RTX-3090", 0.1  # of its published FP32 peak

# Products of an encoder, (inputs, outputs) of each matrix, in the order in which the forward pass needs them.
GROUPS = (
    ((HIDDEN, HIDDEN),) * 3,
    ((HIDDEN, HIDDEN),),
    ((HIDDEN, 4 * HIDDEN),),
    ((4 * HIDDEN, HIDDEN),),
)


@dataclass(frozen=True)
class Tile:
    """Rows of a matrix that an engine has at a time: ROWS inputs, and its half of the outputs."""

    load: int  # steps of the loader
    steps: int  # of the engine, EXPAND: a step has ROWS x LANES weights and one token
    after_rest: bool = False  # whether its product waits for the rest of the program


def tiles(inputs: int, outputs: int, tokens: int, ports: int) -> Iterator[Tile]:
    """Yield the tiles of one engine for a frozen matrix; both engines have as many.

    An engine adds a tile's product to the sums of the tile before, LATENCY steps later or more.
    """
    depth = outputs // M.LANES // M.ENGINES
    vectors = depth * M.ROWS
    steps = max(tokens * depth, M.LATENCY)
    for _ in range(inputs // M.ROWS):
        yield Tile(ceil(vectors * M.ENGINES / ports), steps)


def simulate(groups: Sequence[tuple[Sequence[Tile], int]]) -> int:
    """Return the cycles of a run: groups of tiles, and the cycles of the rest of the program behind each.

    The loader fills a half as soon as the engine has read it (`after_end`), also while the rest runs. The engine begins
    LATENCY cycles after a load (`after_drain`). The rest and the next group's products wait for each other's results.
    Instructions of a unit begin FETCH cycles after one another or more.
    """
    loaded: list[int] = []  # cycles in which loads end
    read: list[int] = []  # cycles in which products end
    load_free = engine_free = rest_end = 0
    for group, rest in groups:
        for number, tile in enumerate(group):
            begin = load_free
            if len(read) >= HALVES:
                begin = max(begin, read[-HALVES] + 2)
            loaded.append(begin + tile.load)
            load_free = begin + max(tile.load, M.FETCH)
            begin = max(engine_free, loaded[-1] + M.LATENCY, rest_end + M.LATENCY if number == 0 and rest_end else 0)
            read.append(begin + tile.steps)
            engine_free = begin + max(tile.steps, M.FETCH)
        rest_end = engine_free + M.LATENCY + rest
        engine_free = rest_end
    return rest_end + M.LATENCY


def passes(ports: int, forward: int, backward: int) -> list[tuple[list[Tile], int]]:
    """Return the groups of a sample: both passes read each weight once; the rest is divided evenly among them."""

    def of_group(group: Sequence[tuple[int, int]], is_back: bool) -> list[Tile]:
        sizes = (size[::-1] if is_back else size for size in group)
        return [tile for size in sizes for tile in tiles(*size, TOKENS, ports)]

    parts = ENCODERS * len(GROUPS)
    found = [(of_group(group, False), forward // parts) for _ in range(ENCODERS) for group in GROUPS]
    return found + [(of_group(group, True), backward // parts) for _ in range(ENCODERS) for group in GROUPS[::-1]]


class LoRA(nn.Module):
    """The update B A of a frozen layer, and its bias."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.a, self.b = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


def tensor_train(inputs: int, outputs: int) -> nn.Module:
    return TTLinear(inputs, outputs, choose_modes(outputs, 3), choose_modes(inputs, 3)[::-1], RANK)


ADAPTERS = {"TT adapters": tensor_train, "LoRA": LoRA}


class Adapters(nn.Module):
    """What stays on the chip: an encoder's trained updates without its frozen matrices, attention, norms."""

    def __init__(self, adapter: Any):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(WORDS, HIDDEN), nn.Embedding(TOKENS, HIDDEN)
        self.words.weight.requires_grad_(False)
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 3)
        self.encoders = nn.ModuleList(Encoder(adapter) for _ in range(ENCODERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]])
        for encoder in self.encoders:
            x = encoder(x)
        return self.head(x[:, 0])


class Encoder(nn.Module):
    """An encoder of BERT; `adapter(inputs, outputs)` makes its linear layers."""

    def __init__(self, adapter: Any):
        super().__init__()
        self.query, self.key, self.value, self.output = (adapter(HIDDEN, HIDDEN) for _ in range(4))
        self.first, self.second = adapter(HIDDEN, 4 * HIDDEN), adapter(4 * HIDDEN, HIDDEN)
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = (part(x).view(batch, length, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(batch, length, HIDDEN)
        x = self.norms[0](x + self.output(mixed))
        return self.norms[1](x + self.second(nn.functional.gelu(self.first(x))))


def hardware(ports: int) -> dict[str, float]:
    """Return what the new unit takes: its buffers in BRAM or in LUTs, switches to the engines, ports to HBM."""
    depth = HALVES * max(outputs for group in GROUPS for _, outputs in group) // M.LANES // M.ENGINES
    rows = M.ENGINES * M.ROWS
    overheads = read_data("operators")["overheads"]
    return {
        "words of a row": depth,
        "buffers": blocks("bram", BITS, depth).times(rows).bram36,
        "ports in BRAM": ports * overheads["port_bram36"]["value"],
        "buffers in LUTs": blocks("lutram", BITS, depth).times(rows).lookup_tables,
        "switches": rows * BITS // 2,  # one of two vectors for each row: a LUT has two outputs
        "ports": ports * overheads["port_lookup_tables"]["value"],
    }


def figures() -> dict[str, Any]:
    """Return the record: the adapters' programs, the streamed machine at each number of ports, what it takes, a GPU."""
    weights = ENCODERS * sum(a * b for group in GROUPS for a, b in group)
    machine, have = resources(machine_record(), U50), {}
    for name in ("bram36", "lookup_tables"):
        have[name] = {"machine": round(machine.total(name).value), "budget": U50.budget[name]}
    record: dict[str, Any] = {"weights": weights, "bytes a sample": 2 * 4 * weights, "card": have, "adapters": {}}
    for name, adapter in ADAPTERS.items():
        model = trace(Adapters(adapter).eval(), TOKENS)
        try:
            program = compile(model, Options(optimizer=Optimizer("adamw")))
        except ProgramError as error:
            record["adapters"][name] = {"refused": str(error)}
            continue
        forward = int(time_program(program.forward, TOKENS).cycles)
        alone = int(time_program(program.sample, TOKENS).cycles)
        found = estimate(model, {TOKENS: 1}, "adamw")
        entry: dict[str, Any] = {"alone": alone, "watts": round(found.power.running.value, 1), "ports": {}}
        for ports in PORTS:
            cycles = simulate(passes(ports, forward, alone - forward))
            seconds = cycles / (1e6 * M.CLOCK_MHZ)
            entry["ports"][str(ports)] = {
                "cycles": cycles,
                "ms": round(1e3 * seconds, 2),
                "gb_s": round(record["bytes a sample"] / seconds / 1e9, 1),
                "millijoules": round(1e3 * seconds * found.power.running.value),
            }
        record["adapters"][name] = entry
    record["hardware"] = {str(ports): hardware(ports) for ports in PORTS}
    gpu = next(each for each in json.loads((ROOT / "data/gpus.json").read_text())["gpus"] if each["gpu"] == GPU)
    seconds = 2 * 2 * weights * TOKENS / (GPU_SHARE * 1e12 * gpu["fp32_tflops"])
    record["gpu"] = {"gpu": GPU, "ms": round(1e3 * seconds, 2), "millijoules": round(1e3 * seconds * gpu["board_w"])}
    return record


def table(record: Mapping[str, Any]) -> str:
    """Return the page's table and the sentences of its figures."""
    lines = [
        "| adapters | ports to HBM | cycles a sample | ms | GB/s from HBM | mJ | adapters alone, cycles |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, entry in record["adapters"].items():
        for ports, each in entry.get("ports", {}).items():
            values = f"{each['ms']} | {each['gb_s']} | {each['millijoules']} | {entry['alone']:,}"
            lines.append(f"| {name}, rank {RANK} | {ports} | {each['cycles']:,} | {values} |")
    two, card, gpu = record["hardware"]["2"], record["card"], record["gpu"]
    luts, bram, size = card["lookup_tables"], card["bram36"], 4 * record["weights"] / 1e6
    lines += [
        "",
        *(f"- {name}, rank {RANK}, alone: {e['refused']}" for name, e in record["adapters"].items() if "refused" in e),
        f"- Frozen weights: {record['weights']:,}, {size:.1f} MB, read in both passes: {2 * size:.1f} MB a sample.",
        f"- Buffers, two halves a row of both engines, {two['words of a row']} vectors deep: {two['buffers']:.0f} "
        f"BRAM36, or {two['buffers in LUTs']:,} LUTs.",
        f"- Switches from the buffers to the engines: {two['switches']:,} LUTs. Two ports: {two['ports']:,.0f} LUTs, "
        f"{two['ports in BRAM']:.0f} BRAM36.",
        f"- The machine has {bram['machine']:,} BRAM36 and {luts['machine']:,} LUTs already; the shell leaves "
        f"{bram['budget']:,} and {luts['budget']:,}.",
        f"- The same products on an {gpu['gpu']}, in dense batches at {GPU_SHARE:.0%} of its published FP32 peak and "
        f"at its board power: {gpu['ms']} ms and {gpu['millijoules']} mJ a sample.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    record = figures()
    write_file(RECORD, json.dumps(record, indent=1) + "\n")
    page = PAGE.read_text(encoding="utf-8")
    begin, rest = page.split(MARKS[0])
    write_file(PAGE, begin + MARKS[0] + "\n" + table(record) + "\n" + MARKS[1] + rest.split(MARKS[1], 1)[1])


if __name__ == "__main__":
    main()
