"""`bttlab methods`: what it lists, what it refuses in one line with nothing written, and methods from outside."""

import json
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import tiny_runs
from bttlab.baseline.receipt import Receipt, details_of
from bttlab.cli import main
from bttlab.data import load_corpus
from bttlab.runs.settings import corpus_digest
from bttlab_methods import methods, registry
from bttlab_methods.record import Results, receipt_of
from command_line import refused, run_json


def test_the_list_has_every_method_with_its_parameters_and_source(capsys):
    listed = {method["name"]: method for method in run_json(capsys, "methods", "list")["methods"]}
    assert list(listed) == list(methods())
    assert listed["galore"]["parameters"]["rank"] == 64 and "arXiv 2403.03507" in listed["galore"]["source"]
    assert main(["methods", "list"]) == 0
    lines = capsys.readouterr().out
    assert all(kind.source in lines and kind.summary() in lines for kind in methods().values())


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["tensro"], "method 'tensro': there is none; did you mean 'tensor'?"),
        (["galore:rnk=4"], "parameter 'rnk': there is none; it has rank, every, scale, learning_rate"),
        (["dense", "lion+lamb"], "lion and lamb do not combine: both change the optimizer"),
        *((["dense", "--budget", text], f"budget is '{text}'") for text in ("0", "0.01epoch", "2weeks")),
        (["dense", "--seeds", "-1"], "seed is -1"),
        (["dense", "--seeds", "0", "1", "0"], "0 is given twice: it would be one run, counted as two"),
        (["lion", "dense+lion"], "lion is given twice"),
        (["tensor", "--rank", "6"], "methods begin with the dense model; give ranks to the method"),
        (["dense", "--model", "net.py:Net"], "--model net.py:Net: methods change the encoder model's parts"),
    ],
)
def test_what_is_refused_is_said_in_one_line_and_nothing_is_written(
    corpus, tmp_path, monkeypatch, capsys, arguments, said
):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "runs"))
    record = tmp_path / "new" / "record.json"
    assert said in refused(capsys, "methods", "run", *arguments, "--data", corpus, "--record", record)
    assert list(tmp_path.iterdir()) == []


def test_models_of_other_sizes_are_other_runs_of_a_record(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "runs"))
    record, sizes = tmp_path / "record.json", tmp_path / "narrow.toml"
    sizes.write_text("hidden_size = 64\nheads = 2\n")

    def trained(*options: str) -> list[dict]:
        command = ["methods", "run", "dense", "--data", str(corpus), "--budget", "2", "--encoders", "1", *options]
        assert main([*command, "--record", str(record), "--json"]) == 0
        capsys.readouterr()
        return details_of(record)

    trained("--hidden-size", "32", "--heads", "2")
    narrow, wider = trained("--model", str(sizes))
    assert narrow["parameters"] < wider["parameters"]
    assert (narrow["model"]["hidden_size"], wider["model"]["hidden_size"], wider["encoders"]) == (32, 64, 1)
    assert trained("--model", str(sizes)) == [narrow, wider]  # what is there is not trained again


def test_a_record_gives_no_result_of_another_corpus_of_the_same_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "runs"))
    record = tmp_path / "record.json"
    one, other = (tiny_runs.write_corpus(tmp_path / name / "flights", seed) for seed, name in enumerate("ab"))

    def trained(corpus: Path) -> dict:
        command = ["methods", "run", "dense", "--data", str(corpus), "--budget", "4", "--encoders", "1"]
        sizes = ["--hidden-size", "32", "--heads", "2"]
        assert main([*command, *sizes, "--record", str(record), "--json"]) == 0
        (result,) = json.loads(capsys.readouterr().out)["results"]
        return result

    first, second = trained(one), trained(other)
    assert first["corpus"] == second["corpus"] == "flights" and first["losses"] != second["losses"]
    assert first["corpus_sha256"] == corpus_digest(load_corpus(str(one))) != second["corpus_sha256"]
    assert details_of(record) == [first, second] and trained(one) == first
    receipt = Receipt.read(record)
    assert sorted(receipt.corpora.values()) == sorted([first["corpus_sha256"], second["corpus_sha256"]])
    assert len(receipt.figures) == 6, "the scores of both, under names of their own"


def test_a_result_without_its_corpus_sha256_is_run_again_and_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "runs"))
    record, corpus = tmp_path / "record.json", tiny_runs.write_corpus(tmp_path / "flights")
    command = ["methods", "run", "dense", "--data", str(corpus), "--budget", "4", "--encoders", "1"]
    command += ["--hidden-size", "32", "--heads", "2", "--record", str(record)]
    assert main(command) == 0
    (result,) = Results.read(record).results
    receipt_of([replace(result, corpus_sha256="", losses=[0.0])]).write(record)
    capsys.readouterr()
    assert main(command) == 0
    assert "dense, seed 0, without the SHA-256 of its corpus: it is run again" in capsys.readouterr().err
    (again,) = Results.read(record).results
    assert (again.losses, again.corpus_sha256) == (result.losses, result.corpus_sha256)
    assert main(command) == 0 and "run again" not in capsys.readouterr().err


GOOD = '''
from dataclasses import dataclass
import torch
from bttlab_methods import Method

@dataclass(frozen=True)
class Plain(Method):
    """Update by plain gradient descent.

    The rest says more.
    """

    name = "plain-sgd"
    family = "optimizers"
    source = "none"
    changes = frozenset({"optimizer"})
    rate: float = 0.01

    def make_optimizer(self, training):
        return torch.optim.SGD(training.trained, lr=self.rate)
'''


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    registry._installed.cache_clear()
    monkeypatch.setattr(registry, "_from_files", {})
    yield
    registry._installed.cache_clear()


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        (GOOD.replace('"optimizers"', '"wrong"'), "MethodError: family of plain-sgd is 'wrong': it must be one of"),
        (GOOD.replace("plain-sgd", "lion"), "MethodError: there is a method 'lion' already; choose another name"),
        (GOOD.replace(" = 0.01", ""), "TypeError: "),
        ("x = 1", "MethodError: it has no subclass of bttlab_methods.Method with a name"),
    ],
)
def test_a_broken_file_is_one_warning_and_the_others_stay(tmp_path, capsys, text, warning):
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert main(["methods", "list", "--json", "--plugin", str(file)]) == 0
    out, err = capsys.readouterr()
    assert '"lion"' in out and err.count("\n") == 1
    assert err.startswith(f"bttlab: warning: the plugin {file} is left out: {warning}")


def test_a_method_of_a_file_is_listed_and_parsed(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    assert main(["methods", "list", "--plugin", str(file)]) == 0
    assert "plain-sgd" in capsys.readouterr().out
    assert registry.parse("plain-sgd:rate=0.5")[0].rate == 0.5


def test_entry_points_add_methods_and_a_broken_one_is_a_warning(tmp_path, capsys, monkeypatch):
    (tmp_path / "package_of_a_method.py").write_text(GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    points = {"mine": "package_of_a_method:Plain", "broken": "no_such_package"}
    made = {name: EntryPoint(name, value, "bttlab.methods") for name, value in points.items()}
    monkeypatch.setattr(registry, "plugins", lambda kind: made)
    assert "plain-sgd" in methods() and "lion" in methods()
    assert capsys.readouterr().err == (
        "bttlab: warning: the plugin broken (no_such_package) is left out: ModuleNotFoundError: No module named "
        "'no_such_package'\n"
    )


@pytest.mark.parametrize("method", ["lion", "lora:pretraining=4"])
def test_a_missing_package_is_one_line_that_names_what_to_install(tmp_path, capsys, monkeypatch, method):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("peft", "pytorch_optimizer"):
        monkeypatch.setitem(sys.modules, name, None)
    line = refused(capsys, "methods", "run", method, "--budget", 8)
    assert "which is not installed: pip install 'p" in line and "(of bttlab-methods" in line
