"""A linear layer of the model, forward and backward, by every library that has one on a CPU."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.peers import IMPLEMENTATIONS, TorchTTLinear, peer_linear
from benchmarks.result import Result, Table, describe_runs, time_ratios, time_rows
from benchmarks.turns import HOW, interleave, repeated, threads_of_torch
from bttlab.baseline.machine import plain
from bttlab.baseline.memory import StorageMeter
from bttlab.model import ModelConfig
from bttlab.tensor import TTLinear
from bttlab.util.quantities import column_metadata, in_digits

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 4096)
PRINTED = {1, 32, 4096}  # tokens in the tables; the record and the figure have all
COMPILED_TOKENS = (1, 32, 4096)  # compiling takes up to half a minute each
OURS = "BTT"
FLOW_OF = {OURS: "bidirectional", "auto": "auto", "right to left": "right_to_left", "reconstruct": "reconstruct"}
TORCHTT = "torchTT"
COMPILED = (OURS, "dense", *(f"tensorly-torch {name}" for name in IMPLEMENTATIONS), TORCHTT)


def measure(
    tokens: Sequence[int] = TOKENS,
    threads: Sequence[int] = (1, 2),
    rounds: int = 9,
    compiled: Sequence[int] = COMPILED_TOKENS,
) -> Result:
    """Measure forward and backward pass of one layer, over `rounds` turns.

    At the numbers of tokens in `compiled`, what torch.compile makes of some takes turns as well, on the first number of
    threads.
    """
    config = ModelConfig()
    notes: list[str] = []
    layers = _layers(config, notes)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, dict[str, float]] = {}
    fixed = {(name, count): _counts(layer, count) for name, layer in layers.items() for count in tokens}
    for thread_count in threads:
        with threads_of_torch(thread_count):
            for count in tokens:
                work = {name: repeated(_pass(layer, count)) for name, layer in layers.items()}
                if count in compiled and thread_count == threads[0]:
                    work |= _compiled({name: layers[name] for name in COMPILED if name in layers}, count, notes)
                seconds = interleave(work, rounds)
                rows += time_rows({"threads": thread_count, "tokens": count}, seconds)
                ratios |= time_ratios(f"{count} tokens, threads {thread_count}: ", seconds, OURS)
    for row in rows:
        row |= fixed.get((row["contender"], row["tokens"]), {"peak": None, "operations": None})
    return Result(
        settings={
            **{"features": config.hidden_size, "rank": config.linear_rank, "rounds": rounds},
            **{"out_modes": config.linear_out_modes, "in_modes": config.linear_in_modes},
            "parameters": {name: sum(p.numel() for p in layer.parameters()) for name, layer in layers.items()},
        },
        figures={
            "time": column_metadata("ms", "measured", f"forward and backward (input, parameters); {HOW}"),
            "peak": column_metadata(
                "bytes",
                "measured",
                "most bytes alive at once of tensors that the two passes make (output and gradients among them), "
                "counted storages; scratch inside kernels is not seen, nor anything of compiled layers",
            ),
            "operations": column_metadata(
                "FLOP", "counted", "torch.utils.flop_counter over both passes: matrix products, 2 a multiply-accumulate"
            ),
        },
        rows=rows,
        ratios=ratios,
        notes=notes,
    )


def _layers(config: ModelConfig, notes: list[str]) -> dict[str, nn.Module]:
    size, modes, rank = config.hidden_size, (config.linear_out_modes, config.linear_in_modes), config.linear_rank
    layers: dict[str, nn.Module] = {name: TTLinear(size, size, *modes, rank, flow) for name, flow in FLOW_OF.items()}
    layers["dense"] = nn.Linear(size, size)
    layers |= {f"tensorly-torch {name}": peer_linear(*modes, rank, name) for name in IMPLEMENTATIONS}
    try:
        return layers | {TORCHTT: TorchTTLinear(*modes, rank)}
    except ImportError:  # it has no wheel, so that it is in no environment but that of `make bench`
        notes.append("torchTT is not installed: pip install --no-build-isolation torchTT")
        return layers


def _compiled(layers: dict[str, nn.Module], tokens: int, notes: list[str]) -> dict[str, Callable[[], float]]:
    """Return a contender for each that torch.compile compiles as a whole, with equal gradients; note the others."""
    logging.getLogger("torch").setLevel(logging.ERROR)  # what it tells at length, the notes tell in a line
    contenders = {}
    for name, layer in layers.items():
        compiled = torch.compile(layer, dynamic=False, fullgraph=True)
        try:
            torch.manual_seed(0)
            expected = _pass(layer, tokens)()
            torch.manual_seed(0)
            torch.testing.assert_close(_pass(compiled, tokens)(), expected, rtol=1e-3, atol=1e-3)
        except Exception as error:  # no C++ compiler, or something that it cannot capture: whatever it says
            note = f"{name} is not compiled: {plain(error)}"
            if note not in notes:  # the same at most numbers of tokens
                notes.append(note)
        else:
            contenders[f"{name}, compiled"] = repeated(_pass(compiled, tokens))
    return contenders


def _pass(layer: nn.Module, tokens: int) -> Callable[[], tuple[Tensor, ...]]:
    """Return one forward and backward pass; it returns all gradients."""
    x = torch.randn(tokens, layer.in_features, requires_grad=True)
    dy = torch.randn(tokens, layer.out_features)
    leaves = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), leaves, dy)


def _counts(layer: nn.Module, tokens: int) -> dict[str, int]:
    _pass(layer, tokens)()  # what is set up at first use is there
    x = torch.randn(tokens, layer.in_features, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()  # the counter knows nothing of torch.autograd.grad
    layer.zero_grad()
    return {"peak": _peak_bytes(layer, tokens), "operations": counter.get_total_flops()}


def _peak_bytes(layer: nn.Module, tokens: int) -> int:
    x = torch.randn(tokens, layer.in_features, requires_grad=True)
    dy = torch.randn(tokens, layer.out_features)
    leaves = [x, *layer.parameters()]
    meter = StorageMeter()
    for tensor in (*leaves, dy):
        meter.number(tensor)
    there = len(meter.events)
    with meter:
        y = layer(x)
        gradients = torch.autograd.grad(y, leaves, dy)
    held = most = 0
    for _, size in meter.events[there:]:
        held += size
        most = max(most, held)
    del gradients
    return most


def tables(result: dict[str, Any]) -> list[Table]:
    """Return time on one thread, times beside BTT's, and memory; the figure has all else."""
    rows = [row for row in result["rows"] if row["tokens"] in PRINTED]
    threads = min(row["threads"] for row in rows)
    cells = {(row["tokens"], row["contender"]): row for row in rows if row["threads"] == threads}
    tokens, names = (list(dict.fromkeys(keys)) for keys in zip(*cells, strict=True))
    times = [[f"{count:,}", *(_cell(cells.get((count, name))) for name in names)] for count in tokens]
    eager = [name for name in names if all((count, name) in cells for count in tokens) and "compiled" not in name]
    peaks = [[f"{count:,}", *(f"{cells[count, name]['peak'] / 1e3:,.1f}" for name in eager)] for count in tokens]
    return [
        Table(f"Time of both passes in ms (measured), threads: {threads}", ["tokens", *names], times),
        _beside(result),
        Table("Peak memory in kB (measured: counted storages)", ["tokens", *eager], peaks),
    ]


def _beside(result: dict[str, Any]) -> Table:
    """Return what each contender takes of BTT's time, a row for each number of threads and tokens."""
    cases = list(dict.fromkeys((row["threads"], row["tokens"]) for row in result["rows"]))
    others = [name for name in dict.fromkeys(row["contender"] for row in result["rows"]) if name != OURS]
    eager, rows = [name for name in others if "compiled" not in name], []
    for threads, tokens in cases:
        ratios = (result["ratios"][f"{tokens} tokens, threads {threads}: {name}"]["median"] for name in eager)
        rows.append([f"{threads}, {tokens:,}", *map(in_digits, ratios)])
    return Table(f"Times {OURS}'s time (measured: median of the ratios of a round)", ["threads, tokens", *eager], rows)


def _cell(row: dict[str, Any] | None) -> str:
    return describe_runs(row["time"]) if row else "-"
