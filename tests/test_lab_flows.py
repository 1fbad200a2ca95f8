"""Notebook 02's views of a layer's programs, and what its prose says of them."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from bttlab.card import EmulatedU50, load_overlay
from bttlab.card.layer import layer_program
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.timing import time_program
from bttlab.lab import (
    check_flow,
    compare_flows,
    compare_lengths,
    draw_costs,
    draw_cycles,
    flow_cycles,
    show_program,
)
from bttlab.lab.cycle_figures import KINDS, cycles_by_kind
from bttlab.tensor import ShapeError, TTLinear, flow_cost, order_cost, order_of

MODES = (12, 8, 8), (8, 8, 12)
FLOWS = {"right to left": "right_to_left", "bi-directional": "bidirectional", "two merged": (2, 2)}
MINE = "R5 = G5 G6\nu = x R5\nz = u G4\nL2 = G1 G2\nL3 = L2 G3\ny = z L3"


@pytest.fixture(scope="module")
def layer():
    return TTLinear(768, 768, *MODES, 12)


@pytest.fixture(scope="module")
def overlay():
    return load_overlay("trainer", EmulatedU50())


def test_every_cycle_of_a_program_has_one_kind(layer):
    for flow in (*FLOWS.values(), MINE):
        program = layer_program(layer, 13, flow)
        kinds = cycles_by_kind(program)
        assert sum(kinds.values()) == time_program(program.forward, 13, False).cycles
        assert kinds[KINDS[0]] > 0 and min(kinds.values()) >= 0
    merged, single = (cycles_by_kind(layer_program(layer, 13, flow)) for flow in ("bidirectional", "right_to_left"))
    assert merged[KINDS[1]] > 4 * single[KINDS[1]] and merged[KINDS[0]] < single[KINDS[0]]


def random_order(seed):
    """A tree of products over x and the cores that share an index with each other."""
    random, shared = np.random.default_rng(seed), lambda a, b: a[1] & b[1]
    cores = [(f"G{k}", {f"r{k - 1}", f"r{k}", f"n{k}"} - {"r0", "r6"}) for k in range(1, 7)]
    tensors, steps = [("x", {"n4", "n5", "n6", "t"}), *cores], []
    while len(tensors) > 1:
        pairs = [(a, b) for a in tensors for b in tensors if a is not b and shared(a, b)]
        a, b = pairs[random.integers(len(pairs))]
        result = f"a{len(steps)}" if len(tensors) > 2 else "y"
        steps.append(f"{result} = {a[0]} {b[0]}")
        tensors = [one for one in tensors if one is not a and one is not b] + [(result, a[1] ^ b[1])]
    return "\n".join(steps)


def test_every_order_runs_or_is_refused_in_one_line(layer):
    middle = "A = G3 G4\nB = A G5\nC = B G6\nD = C x\nE = G2 D\ny = G1 E"
    for order in (middle, middle.replace("C x", "x C"), *map(random_order, range(12))):
        try:
            assert layer_program(layer, 13, order).forward
        except ProgramError as error:
            assert "\n" not in str(error)
    with pytest.raises(ProgramError, match=r"'D = C x': no engine can compute it: .* multiply others first"):
        layer_program(layer, 13, middle)


def test_a_flow_of_ones_own_beside_the_others(layer, overlay, capsys):
    compare_flows(layer, 13, {"mine": MINE, "whole": order_of("reconstruct", 13, *MODES, 12)})
    lines = capsys.readouterr().out.splitlines()
    assert f"{order_cost(MINE, 13, *MODES, 12).macs:,}" in lines[1] and f"{flow_cycles(layer, MINE, 13):,}" in lines[1]
    assert lines[2].endswith("does not fit") and lines[3].startswith("right to left")
    run = check_flow(overlay, layer, MINE, *(torch.randn(13, 768) for _ in range(2)))
    assert capsys.readouterr().out.endswith("all within 1e-05 of autograd in float64\n")
    show_program(run.program, most=3)
    listed = capsys.readouterr().out.splitlines()
    assert "load G6" in listed[0] and listed[-1].startswith("3 of ")


def test_the_least_of_each_length_has_a_star(layer, capsys):
    compare_lengths(layer, (1, 13, 32), FLOWS)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["1"] * 3 + ["13"] * 3 + ["32"] * 3
    for tokens, part in ((1, rows[:3]), (13, rows[3:6]), (32, rows[6:])):
        for column in (-3, -2, -1):
            values = [int(row[column].rstrip("*").replace(",", "")) for row in part]
            assert [row[column].endswith("*") for row in part] == [value == min(values) for value in values]
        cycles = [int(row[-1].rstrip("*").replace(",", "")) for row in part]
        assert cycles == [flow_cycles(layer, flow, tokens) for flow in FLOWS.values()]
    macs = [int(row[-3].rstrip("*").replace(",", "")) for row in rows[3:5]]
    assert macs == [flow_cost(flow, 13, *MODES, 12).macs for flow in ("right_to_left", "bidirectional")]


def test_a_flow_has_one_colour_and_one_name(layer):
    costs, cycles = draw_costs((1, 2), (1, 2), *MODES, (2, 2)), draw_cycles((1, 2), layer, FLOWS)
    by_name = [
        {line.get_label(): to_hex(line.get_color()) for line in picture.figure.axes[0].lines}
        for picture in (costs, cycles)
    ]
    shared = set(by_name[0]) & set(by_name[1])
    assert shared == {"right to left", "bi-directional"}
    assert all(by_name[0][name] == by_name[1][name] for name in shared)
    kinds = {to_hex(patch.get_facecolor()) for patch in cycles.figure.axes[1].collections}
    assert not kinds & set(by_name[1].values())


def test_a_wrong_result_is_named(layer, overlay, capsys, monkeypatch):
    wrong = {"y": 0.0, "dx": np.nan, "dG1": 2e-5}
    monkeypatch.setattr("bttlab.lab.flow_check.autograd_errors", lambda *_: wrong)
    x = torch.randn(2, 768)
    check_flow(overlay, layer, MINE, x, x)
    assert capsys.readouterr().out.endswith("wrong: dx, dG1\n")


def test_a_path_with_the_name_of_a_known_flow_is_refused(layer):
    with pytest.raises(ShapeError, match="'right to left' is the name of a known flow: give your path another name"):
        compare_flows(layer, 13, {"right to left": MINE})
