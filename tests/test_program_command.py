"""bttlab program on the command line."""

import pytest

from bttlab.cli import main
from bttlab.compiler.hazards import Hazard
from bttlab.compiler.instruction import Memory
from bttlab.compiler.program import Options, compile
from bttlab.compiler.timing import time_program
from bttlab.model import ModelConfig
from command_line import refused, run_json


def run(capsys, *arguments):
    code = main(["program", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_its_figures_agree(capsys):
    data = run_json(capsys, "program", "--encoders", 1, "--list")
    cycles = data["cycles"]["13"]
    assert data["provenance"] == "modelled" and "200 MHz" in data["assumptions"][0]
    assert sum(data["sections"].values()) == sum(data["instructions"].values())
    assert sum(data["cycles_by_stage"].values()) == cycles
    assert sum(one["cycles"] for one in data["cycles_by_layer"]) == cycles
    assert all(0 < share < 1 for share in data["busy"].values())
    assert list(data["cycles"].values()) == sorted(data["cycles"].values())
    assert [len(lines) for lines in data["list"].values()] == list(data["sections"].values())


def test_an_update_of_several_samples_is_a_program_with_sums(capsys):
    data = run_json(capsys, "program", "--encoders", 1, "--batch-size", 4)
    program = compile(ModelConfig(encoders=1), Options(sums=True))
    assert list(data["sections"].values()) == [len(section) for section in program.sections]
    assert data["update_cycles"] == 4 * data["cycles"]["13"] + time_program(program.flush, 13).cycles
    assert "batch_size is 0" in refused(capsys, "program", "--encoders", 1, "--batch-size", 0)


@pytest.mark.long
def test_sums_that_do_not_fit(capsys):
    code, out, _ = run(capsys, "--encoders", "6", "--batch-size", "4")
    assert code == 0 and "sample by sample: the sums of gradients do not fit" in out and "of an update" not in out


def test_a_program_for_people_with_every_instruction_in_a_line(capsys):
    code, out, _ = run(capsys, "--encoders", "1", "--tokens", "17", "--list")
    lines = out.splitlines()
    assert code == 0 and lines[0] == "forward:"
    for words in ("1 encoders, bidirectional; a sample of 17 tokens", "modelled, not measured", "engine 1"):
        assert words in out
    line = next(line for line in lines if "REDUCE" in line and "scores = q k^T" in line)
    assert "engine 0" in line and "buffer=buffer 0[" in line and "sums over w" in line
    assert any(" begun" in line for line in lines)
    assert "drained" in out


def test_one_layer_alone(capsys):
    name = "encoders.0.query"
    code, out, _ = run(capsys, "--encoders", "1", "--layer", name)
    listed = [line for line in out.splitlines() if " | " in line]
    assert code == 0 and all(name in line for line in listed) and f"{name}: cycles by stage" in out
    assert "load:" not in out  # no section without an instruction of the layer
    data = run_json(capsys, "program", "--encoders", 1, "--layer", name)
    by_stage = {one["stage"]: one["cycles"] for one in data["cycles_by_layer"] if one["layer"] == name}
    assert data["layer"] == {"name": name, "cycles_by_stage": by_stage} and {"FP", "BP"} <= set(by_stage)
    found = [line for lines in data["list"].values() for line in lines]
    assert found == listed and any("z = x R4" in line for line in found)
    assert 0 < len(found) < sum(data["sections"].values())


@pytest.mark.parametrize("hazards", [[], [Hazard("port", Memory.bank(3), 7, (1, 2), "cycle 7: both ask for bank 3")]])
def test_hazards_are_counted(capsys, monkeypatch, hazards):
    monkeypatch.setattr("bttlab.compiler.hazards.find_hazards", lambda *_, **__: hazards)
    code, out, err = run(capsys, "--encoders", "1", "--check")
    assert code == bool(hazards) and "length 32 of 32" in err
    assert ("hazards at lengths 2 to 32: 0" in out) == (not hazards) and ("both ask for bank 3" in out) == bool(hazards)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "1"], "--tokens 1: a sample has 2 to 32 tokens"),
        (["--gantt", "who.jpg"], "give a name that ends in .png"),
        (["--gantt", "/no/such/folder/who.png"], "No such file or directory"),
        (["--layer", "encoders.9.query"], "encoders.N.query, encoders.N.second"),
    ],
)
def test_bad_input(capsys, arguments, message):
    assert message in refused(capsys, "program", *arguments)


def test_operations_that_reach_no_output_are_named(capsys, tmp_path):
    module = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.gone, self.head = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, tokens):
        x = self.table(tokens)
        return self.head(x + torch.relu(self.gone(x) - 1e9))
"""
    (tmp_path / "net.py").write_text(module)
    arguments = ["--model", f"{tmp_path / 'net.py'}:Net", "--tokens", 8]
    assert run_json(capsys, "program", *arguments)["unseen"] == ["gone", "constant of add"]
    code = main(["program", *map(str, arguments)])
    assert code == 0 and "reached no output in the check of the trace: gone, constant of add" in capsys.readouterr().out
