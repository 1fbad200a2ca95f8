"""Recipes: the schedule of the learning rate, the file, and runs that follow one."""

import shutil
import signal

import numpy as np
import pytest

from bttlab.cli import main
from bttlab.data import Augmentation, load_corpus
from bttlab.data.tags import TagDecoder
from bttlab.model import ReferenceTrainer
from bttlab.runs import LearningRateSchedule, RunError, read_recipe, recipe_names, start_run
from command_line import refused, run_json
from tiny_runs import CONFIG, DEVICE, Interrupter, metrics, resume, settings, train

RECIPE = """
epochs = 2
learning_rate = 1e-3
word_classes = true
label_smoothing = 0.1
[optimizer]
name = "adamw"
beta2 = 0.99
[schedule]
decay = "linear"
warm_up = 0.25
[augmentation]
word_dropout = 1.0
slot_substitution = 0.5
"""
PARTS = {
    "schedule": LearningRateSchedule("linear", 0.25),
    "augmentation": Augmentation(word_dropout=1.0, slot_substitution=0.5),
    "word_classes": True,
    "label_smoothing": 0.1,
}


def test_schedule_rises_and_falls_in_straight_lines():
    steps = np.arange(10)
    assert LearningRateSchedule("linear", 0.2).rates(4.0, steps, 10) == pytest.approx(
        [0, 2, 4, 3.5, 3, 2.5, 2, 1.5, 1, 0.5]
    )
    assert LearningRateSchedule("linear").rates(1.0, steps, 10) == pytest.approx(1 - steps / 10)
    assert LearningRateSchedule("none", 0.5).rates(1.0, steps, 10) == pytest.approx(np.minimum(steps / 5, 1))
    assert np.array_equal(LearningRateSchedule().rates(3e-4, steps, 10), np.full(10, 3e-4))


def test_learning_rates_follow_the_schedule_over_the_whole_run(tmp_path, corpus):
    seen = []

    class Recorder(ReferenceTrainer):
        def train(self, samples, optimizer, learning_rate, label_smoothing):
            seen.extend(learning_rate)
            return super().train(samples, optimizer, learning_rate, label_smoothing)

    chosen = settings(corpus, epochs=3, samples=5, learning_rate=1.0, schedule=LearningRateSchedule("linear"))
    start_run(tmp_path, chosen, load_corpus(corpus)).train(Recorder(CONFIG), DEVICE)
    assert seen == pytest.approx(1 - np.arange(15) / 15)


def test_a_run_by_a_recipe_continues_to_the_same_bits(tmp_path, corpus):
    whole = train(tmp_path / "whole", corpus, "adamw", **PARTS)
    broken = train(
        tmp_path / "broken", corpus, "adamw", Interrupter(5, lambda: signal.raise_signal(signal.SIGINT)), **PARTS
    )
    assert broken.signal is not None and (broken.epochs_done, broken.position) != (0, 0)
    again = resume(tmp_path / "broken")
    assert again.parameters_sha256 == whole.parameters_sha256
    assert metrics(tmp_path / "broken") == metrics(tmp_path / "whole")
    plain = train(tmp_path / "plain", corpus, "adamw")
    assert plain.parameters_sha256 != whole.parameters_sha256


def test_command_line_follows_a_recipe_and_records_it(tmp_path, corpus, capsys):
    file = tmp_path / "mine.toml"
    file.write_text(RECIPE)
    more = ["--recipe", str(file), "--data", str(corpus), "--encoders", "1", "--device", "reference"]
    told = run_json(capsys, "train", *more, "--samples", 3, "--epochs", 1, "--out", tmp_path / "run")
    assert (told["recipe"], told["optimizer"], told["learning_rate"]) == (str(file), "adamw", 1e-3)
    assert told["epochs"] == 1, "what is given comes before the recipe"
    again = refused(capsys, "train", "--resume", tmp_path / "run", "--recipe", "atis")
    assert "--recipe: a run continues as it began" in again
    sgd = run_json(capsys, "train", *more, "--optimizer", "sgd", "--samples", 3, "--epochs", 1, "--out", tmp_path / "s")
    assert sgd["learning_rate"] == 4e-3, "another optimizer brings its own rate"


@pytest.mark.parametrize("decode", ["false", "true"])
def test_a_run_its_evaluation_and_predictions_decode_tags_where_the_recipe_says_so(
    tmp_path, corpus, capsys, monkeypatch, decode
):
    decoded = []

    def decode_all(self, logits, intents, labels=None):
        decoded.append(logits)
        return np.full(logits.shape[:2], begins, np.int32)

    monkeypatch.setattr(TagDecoder, "decode", decode_all)
    begins = load_corpus(corpus).slot_labels.index("B-city")
    file = tmp_path / "mine.toml"
    file.write_text(f"decode_tags = {decode}\n{RECIPE}")
    run = ["--out", str(tmp_path / "run"), "--recipe", str(file), "--data", str(corpus), "--encoders", "1"]
    trained = run_json(capsys, "train", *run, "--device", "reference", "--samples", 3)["test"]
    evaluate = ["eval", "--run", str(tmp_path / "run")]
    found = run_json(capsys, *evaluate)
    assert found["decode_tags"] is (decode == "true")
    assert [found[name] for name in trained] == list(trained.values())
    for option, flag in (("--decode-tags", True), ("--no-decode-tags", False)):
        decoded.clear()
        assert run_json(capsys, *evaluate, option)["decode_tags"] is flag and bool(decoded) is flag
    slots = run_json(capsys, "predict", "from boston", "--run", tmp_path / "run")["predictions"][0]["slots"]
    assert (slots == ["B-city"] * 2) is (decode == "true")


def test_tags_are_decoded_by_the_counts_of_the_runs_own_training_split(tmp_path, corpus, capsys, monkeypatch):
    """Neither another corpus that is scored, nor a changed one in the place of the run's, has a part in decoding."""
    counted, count = [], TagDecoder._count

    def counting(self, train, *ids):
        counted.append(train)
        count(self, train, *ids)

    monkeypatch.setattr(TagDecoder, "_count", counting)
    own = tmp_path / "own"
    shutil.copytree(corpus, own)
    file, out = tmp_path / "mine.toml", str(tmp_path / "run")
    file.write_text(f"decode_tags = true\n{RECIPE}")
    main(["train", "--out", out, "--recipe", str(file), "--data", str(own), "--encoders", "1", "--device", "reference",
          "--samples", "3"])  # fmt: skip
    of_run = load_corpus(own).train
    other = tmp_path / "other"
    shutil.copytree(own, other)
    for name in ("seq.in", "seq.out", "label"):
        lines = (other / "train" / name).read_text().splitlines()
        (other / "train" / name).write_text("\n".join(lines[:2]) + "\n")
    asked = (["eval", "--run", out, "--data", str(other)], ["predict", "from boston", "--run", out])
    for command in asked:
        counted.clear()
        capsys.readouterr()
        assert main(command) == 0
        assert counted == [of_run] and "without the counts" not in "".join(capsys.readouterr())
    shutil.rmtree(own)
    shutil.copytree(other, own)
    for command in asked:
        counted.clear()
        assert main(command) == 0
        assert [len(train) for train in counted] == [0]
        assert "is not the corpus own that the run was trained on; tags are decoded without" in "".join(
            capsys.readouterr()
        )


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_of_the_package_are_sound(name, corpus):
    recipe = vars(read_recipe(name)).copy()
    settings(corpus, recipe.pop("optimizer").name, **recipe)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("epochs", "epoch"), r"epoch is not a setting of Recipe; do you mean epochs\?"),
        (("warm_up", "warmup"), r"schedule.warmup is not a setting of .*; do you mean warm_up\?"),
        (("epochs = 2\n", ""), "epochs is missing"),
        (('"linear"', '"square"'), "schedule.decay is 'square': it must be 'none' or 'linear'"),
        (("[augmentation]\nword_dropout = 1.0\nslot_substitution = 0.5", ""), None),
        (("epochs = 2", "epochs 2"), "is no TOML"),
        (("beta2 = 0.99", "momentum = 0.99"), "optimizer.momentum is no constant of adamw, which has beta1"),
        (
            ('[optimizer]\nname = "adamw"\nbeta2 = 0.99', 'optimizer = "adamw"'),
            "it must be a table with name, momentum",
        ),
    ],
)
def test_recipe_says_what_is_wrong(tmp_path, change, told):
    file = tmp_path / "mine.toml"
    file.write_text(RECIPE.replace(*change), encoding="utf-8-sig")  # as editors of Windows write it
    if told is None:
        assert read_recipe(file).augmentation == Augmentation()
    else:
        with pytest.raises(RunError, match=told):
            read_recipe(file)


def test_names_the_recipes_there_are():
    with pytest.raises(RunError, match=r"no recipe 'atsi'.*choose one of atis"):
        read_recipe("atsi")
