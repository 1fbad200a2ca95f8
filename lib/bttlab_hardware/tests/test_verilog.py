"""How a design is written as Verilog: registers, resets and delays; which modules are equal but for names."""

import re

from bttlab_hardware.synth import without_names
from bttlab_hardware.verilog import Design, shortest_shift


def lines_of(design: Design) -> list[str]:
    return [line.strip() for line in design.text("// head").splitlines()]


def delays_in(lines: list[str]) -> list[tuple[int, int, str, str]]:
    pattern = r"delay #\(\.WIDTH\((\d+)\), \.CYCLES\((\d+)\)\) \w+ \(\.clock\(clock\), \.in\((.*?)\), \.out\((.*?)\)\);"
    found = (re.fullmatch(pattern, line) for line in lines)
    return [(int(one[1]), int(one[2]), one[3], one[4]) for one in found if one]


def test_long_delays_between_the_same_stages_are_one():
    """They share the counters of its rings; flip-flops have none, and stay apart."""
    design, far = Design(), 3 + shortest_shift()
    one, two, late = (design.signal(name, "unit", stage, width=8) for name, stage in (("a", 3), ("b", 3), ("c", 4)))
    for signal in (one, two, late):
        design.assign(signal, "8'h0")
        signal.at(far, "unit")
    for signal in (one, two):
        signal.at(far + 1, "unit")
    delays = delays_in(lines_of(design))
    assert (16, far - 3, "{a, b}", f"{{a_at_{far}, b_at_{far}}}") in delays
    assert (8, far - 4, "c", f"c_at_{far}") in delays
    assert sorted(one for one in delays if one[1] == 1) == [
        (8, 1, f"{name}_at_{far}", f"{name}_at_{far + 1}") for name in ("a", "b")
    ]


def test_a_register_is_the_first_cycle_of_a_delay():
    design = Design()
    made = design.signal("made", "unit", 5, width=32)
    made.at(9, "unit")
    assert made.waits == 4
    design.register_after(made, "clear ? 32'h0 : data")
    lines = lines_of(design)
    register = "always @(posedge clock) made_at_6_q <= clear ? 32'h0 : data; assign made_at_6 = made_at_6_q;"
    assert f"reg [31:0] made_at_6_q; {register}" in lines
    assert delays_in(lines) == [(32, 3, "made_at_6", "made_at_9")]
    assert "wire [31:0] made_at_6, made_at_9;" in lines


def test_what_is_assigned_anew_in_each_stage_has_no_delay():
    design = Design()
    chosen, made = design.signal("chosen", "unit", 2), design.signal("made", "unit", 2, width=32)
    design.assign(chosen, "1'h1")
    for stage in (7, 8):
        made.at(stage, "unit")
    for stage in list(made.uses):
        design.assign_anew(made, stage, f"{chosen.at(stage, 'unit')} ? 32'h3f800000 : 32'h0")
    lines = lines_of(design)
    assert "assign made_at_7 = chosen_at_7 ? 32'h3f800000 : 32'h0;" in lines
    assert delays_in(lines) == [(1, 5, "chosen", "chosen_at_7"), (1, 1, "chosen_at_7", "chosen_at_8")]
    assert "wire [31:0] made_at_7, made_at_8;" in lines


def test_modules_that_are_equal_but_for_names():
    text = "one (\n  input wire clock\n);\n  wire [31:0] a, b;\n  assign a = b + 32'hff; // here\nendmodule"
    other = text.replace("one", "two").replace("here", "there").replace("a, b;", "c;\n  wire [31:0] b;")
    other = other.replace("assign a", "assign c")
    key, names = without_names(text)
    assert (key, ["two" if name == "one" else "c" if name == "a" else name for name in names]) == without_names(other)
    for old, new in (("b + 32", "a + 32"), ("'hff", "'hfe"), ("[31:0]", "[30:0]")):
        assert without_names(text.replace(old, new))[0] != key
    stores = [f".store(host_store[{bit}]), .load(a[3])" for bit in (1, 2)]
    assert (
        without_names(stores[0])[0] == without_names(stores[1])[0] != without_names(stores[0].replace("[3]", "[4]"))[0]
    )
