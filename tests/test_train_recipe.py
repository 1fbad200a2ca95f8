"""Recipes: the schedule of the learning rate, the file, and runs that follow one."""

import shutil
import signal

import numpy as np
import pytest

from bttlab.cli import main
from bttlab.data import Augmentation, load_corpus
from bttlab.data.tags import TagDecoder
from bttlab.model import ReferenceTrainer
from bttlab.runs import LearningRateSchedule, RunError, read_recipe, read_run, recipe_names, resume_run, start_run
from bttlab.runs.rates import RateHistory
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


def test_a_run_resumed_for_more_epochs_records_that_its_schedule_changed(tmp_path, corpus, capsys, monkeypatch):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    chosen = {"samples": 10, "learning_rate": 1e-3, **PARTS}
    train(tmp_path / "whole", corpus, "adamw", epochs=2, **chosen)
    train(tmp_path / "longer", corpus, "adamw", epochs=1, **chosen)
    assert "schedule.epochs" not in read_run(tmp_path / "longer").configuration
    run = resume_run(tmp_path / "longer", {"epochs": 2})
    (note,) = [note for note in run.notes if "schedule" in note]
    assert "was over 1 epoch, and is over 2 from here on: the rate changes from 0.000133 to 0.000667" in note
    run.train(ReferenceTrainer(CONFIG), DEVICE)
    assert read_run(tmp_path / "longer").configuration["schedule.epochs"] == [[0, 1], [10, 2]]
    used = [(line["first_learning_rate"], line["last_learning_rate"]) for line in metrics(tmp_path / "longer")[:2]]
    assert used[0] == pytest.approx((0, 1e-3 * 0.1 / 0.75))
    assert used[1] == pytest.approx((1e-3 * 0.5 / 0.75, 1e-3 * 0.05 / 0.75))
    whole = [(line["first_learning_rate"], line["last_learning_rate"]) for line in metrics(tmp_path / "whole")[:2]]
    assert whole[0] == pytest.approx((0, 1e-3 * 0.55 / 0.75)) and whole[1] == used[1]
    assert run_json(capsys, "runs", "compare", "whole", "longer")["differing"] == ["schedule.epochs"]
    for command in (["list"], ["show", "longer"], ["compare", "whole", "longer"]):
        assert main(["runs", *command]) == 0 and "1; after 10 samples 2" in capsys.readouterr().out
    assert not [note for note in resume_run(tmp_path / "longer").notes if "schedule" in note]


def test_a_run_resumed_for_more_epochs_without_a_schedule_is_that_of_an_unbroken_one(tmp_path, corpus):
    train(tmp_path / "whole", corpus, epochs=2)
    train(tmp_path / "longer", corpus, epochs=1)
    run = resume_run(tmp_path / "longer", {"epochs": 2})
    assert not [note for note in run.notes if "schedule" in note]
    run.train(ReferenceTrainer(CONFIG), DEVICE)
    assert read_run(tmp_path / "longer").configuration == read_run(tmp_path / "whole").configuration
    assert metrics(tmp_path / "longer")[:2] == metrics(tmp_path / "whole")[:2]


def test_every_learning_rate_of_a_resumed_run_is_recorded(tmp_path, corpus, capsys, monkeypatch):
    monkeypatch.setenv("BTTLAB_RUNS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "one", corpus, epochs=1, samples=10, learning_rate=0.25)
    for epochs, rate in ((2, 0.125), (2, 0.5), (3, 0.125), (4, 0.0625)):  # with 0.5 nothing is left to train
        resume(tmp_path / "one", epochs=epochs, learning_rate=rate)
    configuration = read_run(tmp_path / "one").configuration
    assert configuration["learning_rates"] == [[0, 0.25], [10, 0.125], [30, 0.0625]]
    assert "learning_rate" not in configuration
    found = run_json(capsys, "runs", "list", "--where", "epochs == 4")["runs"]
    assert found[0]["learning_rate"] is None and found[0]["learning_rates"] == configuration["learning_rates"]
    train(tmp_path / "other", corpus, epochs=4, samples=10, learning_rate=0.0625)
    assert {*run_json(capsys, "runs", "compare", "one", "other")["differing"]} == {"learning_rate", "learning_rates"}


def test_a_rate_that_changes_within_an_epoch_is_in_its_line(tmp_path, corpus):
    interrupter = Interrupter(3, lambda: signal.raise_signal(signal.SIGINT))
    stopped = train(tmp_path / "run", corpus, trainer=interrupter, epochs=1, learning_rate=0.25)
    assert 0 < stopped.position
    resume(tmp_path / "run", learning_rate=0.125)
    (line, _) = metrics(tmp_path / "run")
    assert (line["first_learning_rate"], line["last_learning_rate"], line["learning_rate"]) == (0.25, 0.125, 0.125)
    assert read_run(tmp_path / "run").configuration["learning_rates"] == [[0, 0.25], [stopped.position, 0.125]]


@pytest.mark.parametrize("damaged", ["nonsense", [], [[0]], [[3, 0.1]], [[0, "x"]], [[0, 1], [0, 2]], [[0, True]]])
def test_an_entry_of_another_form_is_not_taken_for_learning_rates(corpus, damaged):
    before = settings(corpus, learning_rate=0.25)
    assert RateHistory.of(before, {"learning_rates": damaged}).rates == [(0, 0.25)]


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
