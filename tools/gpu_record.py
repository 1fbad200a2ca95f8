"""Record training on a GPU: baselines in batches of 1 and 16, and a LoRA step of a 1-billion-parameter model.

It takes at most `--minutes` on a machine with this checkout, torch, a CUDA driver and the packages of `bttlab`, without
a network and without zeus. The folder that it writes has

    baselines/  files for data/baselines: batches of 1 and 16, FP32 and TF32, each eager and in CUDA graphs
    cost/  a file for data/cost/others: the LoRA step, for the held-out table of docs/cost.md
    techniques.json  what docs/survey.md names and needs a GPU, beside what it replaces: tools/gpu_techniques.py
    about.json  when, on what, what was left out

Copy them there: dashboard, docs/energy.md (`python tools/card_pages.py` writes its table) and the errors of held-out
projects (`bttlab cost check`) then have them.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "lib"))

import numpy as np
import torch
import torch.nn.functional as F
from gpu_techniques import TECHNIQUES
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bttlab.baseline import BaselineSetting, run_baseline
from bttlab.baseline.machine import load_average, machine_of, open_device
from bttlab.baseline.memory import device_memory
from bttlab.baseline.modes import FIRST_STEPS
from bttlab.baseline.run import FORMATS
from bttlab.model import ModelConfig
from bttlab.util.files import write_file
from bttlab.util.quantities import measured, to_json
from bttlab.util.terminal import say

MODES = ("linear_out_modes", "linear_in_modes", "embedding_column_modes")
PRECISIONS = {"fp32": "highest", "tf32": "high"}
SETTINGS = (("fp32", 1), ("fp32", 16), ("tf32", 16), ("tf32", 1))  # precision, batch: the most wanted first
TIMED = 100
# Llama 3.2 1B, as in data/cost/others/models.json, and one that a CPU trains in a moment.
LARGE = {"layers": 16, "hidden": 2048, "heads": 32, "key_value_heads": 8, "expert_hidden": 8192, "vocabulary": 128_256}
SMALL = ModelConfig(hidden_size=64, heads=4, **dict.fromkeys(MODES, (4, 4, 4)))
TINY = {"layers": 2, "hidden": 64, "heads": 4, "key_value_heads": 2, "expert_hidden": 128, "vocabulary": 100}


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter in FP32 (LoRA, arXiv 2106.09685)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 16):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, dtype=torch.bfloat16) * 0.02, requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(rank, inputs) * 0.02), nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., inputs) to (..., outputs)."""
        return F.linear(x, self.weight) + F.linear(F.linear(x.float(), self.down), self.up).to(x.dtype)


class Block(nn.Module):
    """A Llama block: grouped-query attention and a gated feed-forward layer, with RMS norms before them."""

    def __init__(self, hidden: int, heads: int, key_value_heads: int, expert_hidden: int, **_: int):
        super().__init__()
        self.heads, size = heads, hidden // heads
        narrow = size * key_value_heads
        self.query, self.output = Adapted(hidden, hidden), Adapted(hidden, hidden)
        self.key, self.value = Adapted(hidden, narrow), Adapted(hidden, narrow)
        self.gate, self.up, self.down = (
            Adapted(*shape) for shape in ((hidden, expert_hidden), (hidden, expert_hidden), (expert_hidden, hidden))
        )
        self.norms = nn.ModuleList(nn.RMSNorm(hidden, dtype=torch.bfloat16).requires_grad_(False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, T, hidden) to the same shape."""
        y = self.norms[0](x)
        parts = [
            layer(y).unflatten(-1, (-1, x.shape[-1] // self.heads)) for layer in (self.query, self.key, self.value)
        ]
        query, key, value = (part.transpose(1, 2) for part in parts)
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.output(heads.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def lora_step(shape: dict[str, int], device: torch.device, batch: int, sequence: int) -> Callable[[], None]:
    """Return a function that trains the adapters on a batch of random tokens, with checkpointing and AdamW."""
    with device:
        table = nn.Embedding(shape["vocabulary"], shape["hidden"], dtype=torch.bfloat16).requires_grad_(False)
        blocks = nn.ModuleList(Block(**shape) for _ in range(shape["layers"]))
        norm = nn.RMSNorm(shape["hidden"], dtype=torch.bfloat16).requires_grad_(False)
        tokens = torch.randint(shape["vocabulary"], (batch, sequence))
    optimizer = torch.optim.AdamW([one for one in blocks.parameters() if one.requires_grad], lr=1e-4, fused=True)

    def step() -> None:
        x = table(tokens).requires_grad_()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = F.linear(norm(x), table.weight).float()[:, :-1]
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], None], device: torch.device, steps: int) -> float:
    """Return the median seconds of a step, each waited for."""
    synchronise = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(FIRST_STEPS):
        step()
    synchronise()
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        synchronise()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--gpu", default="", metavar="NAME", help="the GPU's name in data/gpus.json, for the cost model"
    )
    parser.add_argument("--data", default="airline", metavar="NAME|PATH")
    parser.add_argument("--minutes", type=float, default=8.0, metavar="N")
    parser.add_argument("--nvme", type=Path, metavar="DIR", help="folder on an NVMe disk for 2 GB (default: in --out)")
    parser.add_argument("--dry-run", action="store_true", help="small models on the CPU: whether everything works")
    options = parser.parse_args(arguments)
    device = open_device("cpu" if options.dry_run else "cuda")
    began, load = time.monotonic(), load_average()
    left_out: list[str] = []
    longest = 0.0
    for name, work in _works(options, device):
        begin = time.monotonic()
        if begin - began + longest > 60 * options.minutes:
            left_out.append(name)
            continue
        say(f"{begin - began:5.0f} s  {name}")
        work()
        longest = max(longest, time.monotonic() - begin)
    about = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": vars(machine_of(device, load)),
        "dry_run": options.dry_run,
        "minutes": (time.monotonic() - began) / 60,
        "left_out": left_out,
    }
    write_file(options.out / "about.json", to_json(about, indent=1) + "\n")
    return 0


def _works(options: argparse.Namespace, device: torch.device) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what is measured, the most wanted first."""
    kind = device.type
    encoders, steps = ((2, 4, 6), TIMED) if kind == "cuda" else ((1,), 2)
    shape, batch, sequence = (LARGE, 4, 512) if kind == "cuda" else (TINY, 2, 16)
    model = ModelConfig() if kind == "cuda" else SMALL
    for folder in ("baselines", "cost"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)

    def baseline(precision: str, samples: int, count: int, format: str) -> None:
        torch.set_float32_matmul_precision(PRECISIONS[precision])
        config, warmup = replace(model, encoders=count), 10 if steps > 10 else 0
        setting = BaselineSetting(format, kind, config, options.data, steps, warmup, batch=samples)
        suffix = f"-batch{samples}" * (samples > 1) + f"-{precision}" * (precision != "fp32")
        run_baseline(setting).write(options.out / "baselines" / f"enc{count}-{format}-{kind}{suffix}.json")

    compared: dict[str, dict[str, Any]] = {}

    def technique(name: str) -> None:
        rows, reason = [], ""
        how = f"median of {min(steps, 20)} steps on {torch.cuda.get_device_name(device) if kind == 'cuda' else 'a CPU'}"
        try:
            for label, step in TECHNIQUES[name](device, options.nvme or options.out / "nvme"):
                seconds = measured(timed(step, device, min(steps, 20)), "s", how)
                rows.append({"with": label, "seconds": seconds, "memory": device_memory(device)[0].to_dict()})
        except (ImportError, NotImplementedError, RuntimeError) as error:  # of this device, or of a package
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        compared[name] = {"steps": rows, "left_out": reason}
        write_file(options.out / "techniques.json", to_json(compared, indent=1) + "\n")

    def lora() -> None:
        count = min(steps, 20)
        seconds = timed(lora_step(shape, device, batch, sequence), device, count)
        run = {"model": "llama-3.2-1b", "method": "lora", "gpu": options.gpu or "H100-80GB", "batch": batch}
        run |= {"sequence": sequence, "checkpointing": True, "sequences": batch, "seconds": seconds}
        peak, _ = device_memory(device)
        if peak.value is not None:
            run["peak_gb"] = peak.value / 1e9
        name = torch.cuda.get_device_name(device) if kind == "cuda" else "a CPU, a dry run"
        how = f"measured by tools/gpu_record.py on {name}: median of {count} steps; LoRA of rank 16, BF16"
        project = {"project": f"gpu-record-{kind}", "fitted": False, "source": "tools/gpu_record.py", "how": how}
        text = to_json(project | {"options": {"lora_rank": 16}, "runs": [run]}, indent=1)
        write_file(options.out / "cost" / f"gpu-record-{kind}.json", text + "\n")

    for precision, samples in SETTINGS:
        for count in encoders:
            for format in FORMATS:
                name = f"{format}, {count} encoders, batch {samples}, {precision}"
                yield name, lambda p=precision, n=samples, c=count, f=format: baseline(p, n, c, f)
        if (precision, samples) == SETTINGS[0]:
            yield "LoRA step of a model of 1.2 billion parameters", lora
            for name in TECHNIQUES:
                yield name, partial(technique, name)


if __name__ == "__main__":
    sys.exit(main())
