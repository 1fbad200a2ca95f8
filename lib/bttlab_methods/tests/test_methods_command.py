"""`bttlab methods`: what it lists, and what it refuses in one line, with nothing trained or written."""

import json
from dataclasses import dataclass

import pytest

from bttlab.cli import main
from bttlab_methods import Method, methods
from tiny_runs import write_corpus


@dataclass(frozen=True)
class OnGpus(Method):
    """Need a GPU, for a test of what a machine without one says."""

    name = "on-gpus"
    family = "memory"
    source = "none"
    changes = frozenset({"place"})
    needs_cuda = True


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("data") / "tiny")


def test_the_list_has_every_method_with_its_parameters_and_source(capsys):
    assert main(["methods", "list", "--json"]) == 0
    listed = {method["name"]: method for method in json.loads(capsys.readouterr().out)["methods"]}
    assert list(listed) == list(methods())
    assert listed["galore"]["parameters"]["rank"] == 64 and "arXiv 2403.03507" in listed["galore"]["source"]
    assert main(["methods", "list"]) == 0
    lines = capsys.readouterr().out
    assert all(kind.source in lines and kind.summary() in lines for kind in methods().values())


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["tensro"], "method 'tensro': there is none; did you mean 'tensor'? bttlab methods list names all"),
        (["galore:rnk=4"], "method galore: parameter 'rnk': there is none; it has rank, every, scale, learning_rate"),
        (["dense", "lion+lamb"], "lion and lamb do not combine: both change the optimizer; leave one out"),
        (["dense", "tensor+lora"], "tensor and lora do not combine: both change the linear layers; leave one out"),
        (["lion+lion"], "lion is named twice; name it once"),
        (["dense", "on-gpus"], "on-gpus needs a GPU with CUDA, not cpu; leave it out, or pass --device cuda"),
        (
            ["dense", "--budget", "0"],
            "budget is '0': it must be at least one sample; give a number of samples, as 2000, or of epochs, as 1epoch "
            "or 0.5epoch",
        ),
        (
            ["dense", "--budget", "0.01epoch"],
            "budget is '0.01epoch': it must be at least one sample; give a number of samples, as 2000, or of epochs, "
            "as 1epoch or 0.5epoch",
        ),
        (
            ["dense", "--budget", "2weeks"],
            "budget is '2weeks': it must be at least one sample; give a number of samples, as 2000, or of epochs, as "
            "1epoch or 0.5epoch",
        ),
        (["dense", "--seeds", "-1"], "seed is -1: it must be at least 0; pass --seed 0"),
        (["dense", "--threads", "0"], "threads is 0: it must be at least 1; pass --threads 1"),
        (
            ["dense", "stacking:doublings=2"],
            "stacking: doublings is 2 for 2 encoder(s): it must be at least 1, and 2 to that power divide the "
            "encoders; take stacking:doublings=1 with --encoders 2",
        ),
        (
            ["tensor", "--rank", "6"],
            "the model's linear_rank is 6: methods begin with the dense model; give ranks to the method, as "
            "tensor:rank=6,embedding_rank=15",
        ),
        (
            ["dense", "--model", "net.py:Net"],
            "--model net.py:Net: methods change the encoder model's parts, which a module of your own does not name; "
            "give sizes, as --hidden-size 384, or a .toml file",
        ),
    ],
)
def test_what_is_refused_is_said_in_one_line_and_nothing_is_written(
    corpus, tmp_path, monkeypatch, capsys, arguments, said
):
    monkeypatch.setattr("bttlab_methods.registry.methods", lambda: methods() | {OnGpus.name: OnGpus})
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "runs"))
    record = tmp_path / "new" / "record.json"
    assert main(["methods", "run", *arguments, "--data", str(corpus), "--record", str(record)]) == 2
    assert capsys.readouterr() == ("", f"bttlab: error: {said}\n")
    assert list(tmp_path.iterdir()) == []


def test_models_of_other_sizes_are_other_runs_of_a_record(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path / "runs"))
    record, sizes = tmp_path / "record.json", tmp_path / "narrow.toml"
    sizes.write_text("hidden_size = 64\nheads = 2\n")

    def trained(*options: str) -> list[dict]:
        command = ["methods", "run", "dense", "--data", str(corpus), "--budget", "2", "--encoders", "1", *options]
        assert main([*command, "--record", str(record), "--json"]) == 0
        capsys.readouterr()
        return json.loads(record.read_text())

    trained("--hidden-size", "32", "--heads", "2")
    narrow, wider = trained("--model", str(sizes))
    assert narrow["parameters"] < wider["parameters"]
    assert (narrow["model"]["hidden_size"], wider["model"]["hidden_size"], wider["encoders"]) == (32, 64, 1)
    assert trained("--model", str(sizes)) == [narrow, wider]  # what is there is not trained again


def test_several_runs_have_no_one_checkpoint(corpus, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["methods", "run", "dense", "lion", "--data", str(corpus), "--checkpoint", str(folder)]) == 2
    assert capsys.readouterr().err == (
        f"bttlab: error: --checkpoint {folder} is the place of one run, not of 2; give one name and one seed\n"
    )
    assert not folder.exists()
