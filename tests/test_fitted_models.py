"""A corpus of many words, or of subwords: every command that takes it has the model that `bttlab train` trains."""

import json

import pytest

from bttlab.cli import main
from bttlab.data import Split
from bttlab.data.corpus import files_of, store_corpus
from bttlab.data.tokenizer import Tokenizer
from bttlab.runs import race
from bttlab.util.errors import BttlabError
from command_line import refused, run_json

PIECES = [f"w{n}" for n in range(1100)]


@pytest.fixture(scope="module")
def many_pieces(tmp_path_factory):
    """A corpus of 1,100 subwords, of which every second one continues a word."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({piece: n for n, piece in enumerate(PIECES)}, "w0"))
    words = [PIECES[n : n + 10] for n in range(0, 1100, 10)]
    some = Split(words, [["B-a", "PAD"] * 5 for _ in words], ["x"] * len(words))
    splits = {"train": some, "dev": some[:2], "test": some[:2]}
    files = files_of(["UNK", "x"], ["PAD", "UNK", "O", "B-a", "I-a"], splits, Tokenizer("subwords", made.to_str()))
    return store_corpus(files, tmp_path_factory.mktemp("corpora") / "many")


SIZES = ["--encoders", "1", "--hidden-size", "64", "--heads", "2"]
OF_TRAIN = (11 * 10 * 11, True)  # rows of the table for 1,103 tokens, and whether later pieces are left out of the loss


def fitted(model):
    return model["vocabulary_size"], model.get("ignore_pad", False)


def trained(capsys, corpus, folder, *options):
    run_json(capsys, "train", "--data", corpus, "--samples", 2, "--out", folder / "run", *SIZES, *options)
    return fitted(json.loads((folder / "run" / "run.json").read_text())["configuration"])


def estimated(capsys, corpus, folder, *options):
    return fitted(run_json(capsys, "estimate", "--data", corpus, *SIZES, *options)["estimates"][0]["model"])


def timed(capsys, corpus, folder, *options):
    steps = ["--steps", 1, "--warmup", 0, "--format", "btt", "--device", "cpu"]
    return fitted(run_json(capsys, "baseline", "--data", corpus, *steps, *SIZES, *options)["config"])


def compared(capsys, corpus, folder, *options):
    found = run_json(capsys, "methods", "run", "dense", "--data", corpus, "--budget", 2, *SIZES, *options)
    return fitted({"vocabulary_size": 1000} | found["results"][0]["model"])


def swept(capsys, corpus, folder, *options):
    fixed = {"data": str(corpus), "encoders": 1, "hidden_size": 64, "heads": 2}
    fixed |= {"vocabulary_size": int(options[1])} if options else {}
    (folder / "a.yaml").write_text(json.dumps({"kind": "estimate", "fixed": fixed, "vary": {"clock_mhz": [200]}}))
    found = run_json(capsys, "sweep", folder / "a.yaml", "--out", folder / "sweep", "--workers", 1)
    run = folder / "sweep" / found["best"] / "run.json"
    return fitted(json.loads(run.read_text())["configuration"])


@pytest.mark.parametrize("command", [trained, estimated, timed, compared, pytest.param(swept, marks=pytest.mark.long)])
def test_the_model_of_a_command_is_that_of_train(many_pieces, tmp_path, capsys, command):
    assert command(capsys, many_pieces, tmp_path) == OF_TRAIN


@pytest.mark.parametrize("command", [trained, estimated, timed, compared, pytest.param(swept, marks=pytest.mark.long)])
def test_a_vocabulary_that_is_given_stays(many_pieces, tmp_path, capsys, command):
    assert command(capsys, many_pieces, tmp_path, "--vocabulary", "500") == (512, True)


def test_a_race_is_of_the_model_of_train_and_counts_what_it_does_not_see(many_pieces, monkeypatch, capsys):
    settings = []

    class Entered(race.Race):
        def run(self, on_lap):
            settings.append(self.setting)
            raise BttlabError("enough")

    monkeypatch.setattr(race, "Race", Entered)
    assert main(["race", "cpu", "--data", str(many_pieces), "--encoders", "1"]) == 2
    assert fitted(settings[0].config.to_dict()) == OF_TRAIN
    said = capsys.readouterr().err
    assert "the model has room for all words of many, in a table of 1,210 rows" in said
    assert "many dev: 2 utterances, 20 words" in said


def test_a_record_of_fewer_words_is_no_racer(many_pieces, capsys):
    said = refused(capsys, "race", "cpu", "enc2-btt-cuda", "--data", many_pieces)
    assert "enc2-btt-cuda is of btt, 2-ENC" in said and "(vocabulary_size 1000, not 1210)" in said
