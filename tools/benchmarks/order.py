"""The order of contraction: the bi-directional flow and flow="auto" against the best order that opt_einsum finds."""

from collections.abc import Sequence
from typing import Any

from benchmarks.result import Result, Table, exact_ratio
from bttlab.model import ModelConfig
from bttlab.tensor import cheapest_order, flow_cost, optimal_cost
from bttlab.util.quantities import column_metadata

TOKENS = (1, 2, 4, 8, 13, 32, 64, 128, 512, 4096)
RANKS = (4, 8, 12, 16, 32, 64)
PRINTED_RANK, PRINTED_TOKENS = 12, (1, 13, 32, 128)  # in the table; the record and the figure have all
SEARCH = "optimal"


def measure(tokens: Sequence[int] = TOKENS, ranks: Sequence[int] = RANKS) -> Result:
    """Compare multiply-accumulates and peak memory, from shapes, of the model's linear layer."""
    config = ModelConfig()
    modes = config.linear_out_modes, config.linear_in_modes
    rows, ratios = [], {}
    for rank in ranks:
        for count in tokens:
            flow = flow_cost("bidirectional", count, *modes, rank)
            groups, auto = cheapest_order(count, *modes, rank)
            best = optimal_cost(count, *modes, rank, SEARCH)
            rows.append(
                {
                    **{"tokens": count, "rank": rank, "dense_macs": 3 * count * config.hidden_size**2},
                    **{"btt_forward": flow.forward.macs, "btt_backward": flow.backward.macs},
                    **{"auto_forward": auto.forward.macs, "auto_backward": auto.backward.macs, "auto_groups": groups},
                    "optimum_forward": best.macs,
                    "btt_peak": [flow.forward.peak_elements, flow.backward.peak_elements],
                    "auto_peak": [auto.forward.peak_elements, auto.backward.peak_elements],
                    "optimum_peak_forward": best.peak_elements,
                }
            )
            ratios[f"{count} tokens, rank {rank}: optimum over auto"] = exact_ratio(best.macs, auto.forward.macs)
    return Result(
        settings={"out_modes": modes[0], "in_modes": modes[1], "search": SEARCH},
        figures={
            "macs": column_metadata(
                "multiply-accumulates", "counted", "from shapes; backward as the hand-derived passes do it"
            ),
            "peak": column_metadata(
                "elements", "counted", "from shapes: most intermediates alive during a step (bttlab.tensor)"
            ),
            "optimum": column_metadata("", "counted", f"opt_einsum, optimize={SEARCH!r}: exhaustive; forward pass"),
        },
        rows=rows,
        ratios=ratios,
        notes=[],
    )


def tables(result: dict[str, Any]) -> list[Table]:
    """Return the costs at each number of tokens. Backward passes take twice as many multiply-accumulates."""
    costs = [
        [
            *(str(row["rank"]), f"{row['tokens']:,}"),
            *(f"{row[name] / 1e3:,.0f}" for name in ("btt_forward", "auto_forward", "optimum_forward")),
            _merges(row["auto_groups"]),
            f"{1 - row['auto_forward'] / row['btt_forward']:.0%}",
            *(" / ".join(f"{value / 1e3:,.0f}" for value in row[name]) for name in ("btt_peak", "auto_peak")),
            f"{row['optimum_peak_forward'] / 1e3:,.0f}",
        ]
        for row in result["rows"]
        if row["rank"] == PRINTED_RANK and row["tokens"] in PRINTED_TOKENS
    ]
    headers = [
        *("rank", "tokens", "BTT forward", "auto forward", "optimum forward", "auto merges", "auto saves"),
        *("BTT peak", "auto peak", "optimum's peak forward"),
    ]
    title = "Thousand multiply-accumulates and thousand elements at the peak (forward / backward), counted from shapes"
    return [Table(title, headers, costs)]


def _merges(groups: Sequence[Sequence[int]] | None) -> str:
    """Say which cores are merged, such as "G1G2, G5G6"."""
    if groups is None:
        return "all (W)"
    first, merged = 1, []
    for size in (*groups[0], *groups[1]):
        if size > 1:
            merged.append("".join(f"G{k}" for k in range(first, first + size)))
        first += size
    return ", ".join(merged) or "none"
