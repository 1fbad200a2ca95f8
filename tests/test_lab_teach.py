"""Ask and teach the model on the card."""

from dataclasses import replace

import ipywidgets
import numpy as np
import pytest

from bttlab.card import open_trainer
from bttlab.data import Vocabulary, encode, epoch_order, load_corpus, read_corpus
from bttlab.data.metrics import score
from bttlab.lab import Ask, Teach
from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer, initial_parameters

SENTENCE = "take me home to pittsburgh please"
SLOT = "toloc.city_name"


@pytest.fixture(scope="module")
def corpus():
    whole = load_corpus("airline")
    return replace(whole, dev=whole.dev[:100])  # scoring all takes longer than the rest


@pytest.fixture(scope="module")
def vocabulary(corpus):
    return Vocabulary.from_sentences(corpus.train.words, ModelConfig().vocabulary_size)


@pytest.fixture(scope="module")
def parameters(corpus, vocabulary):
    """Parameters after 1,500 samples."""
    config = ModelConfig()
    train = encode(corpus.train, vocabulary, corpus, config)
    trainer = open_trainer(config, "emulated")
    trainer.load_parameters(initial_parameters(config, seed=0))
    trainer.train(train[epoch_order(len(train), 0, 0)[:1500]], Optimizer("sgd"), 4e-3)
    return trainer.store_parameters()


@pytest.fixture
def trainer(parameters):
    trainer = open_trainer(ModelConfig(), "emulated")
    trainer.load_parameters(parameters)
    return trainer


@pytest.fixture
def teach(trainer, corpus, vocabulary):
    return Teach(trainer, corpus, vocabulary, SENTENCE)


def words_of(widget) -> list[str]:
    """The words on buttons."""
    here = [widget.description] if isinstance(widget, ipywidgets.Button) else []
    return here + [word for child in getattr(widget, "children", ()) for word in words_of(child)]


def test_the_answer_names_intent_slots_and_unknown_words(trainer, corpus, vocabulary):
    ask = Ask(trainer, corpus, vocabulary)
    ask.ask("Show me the zeppelin <b> to boston!")
    assert ask.answer.words == ["show", "me", "the", "zeppelin", "<b>", "to", "boston"]
    html = ask._answer.children[0].value
    for span in ask.answer.spans:
        assert span.slot == "O" or f"{span.slot}  {span.probability:.0%}".replace("%", " %") in html
    assert f"{ask.answer.intent}  {ask.answer.intent_probability:.0%}".replace("%", " %") in html
    assert "<b>zeppelin, &lt;b&gt;</b>" in ask._unknown.value and "&lt;b&gt;" in html


def test_a_sentence_that_is_too_long_is_refused_in_one_line(teach):
    before = teach.answer
    teach.ask("to boston " * 20)
    assert "40 words; the model takes 1 to 31" in teach._message.value and teach.answer is before
    teach.ask("to boston")
    assert teach._message.value == ""


def test_corrected_words_make_valid_tags(teach):
    teach.ask("from new york to new orleans")
    for place in (1, 2):
        teach.correct(place, "fromloc.city_name")
    for place in (4, 5):
        teach.correct(place, SLOT)
    teach.correct("to", "O")
    teach.correct("from", "O")
    kinds = ["O", "B-fromloc.city_name", "I-fromloc.city_name", "O", f"B-{SLOT}", f"I-{SLOT}"]
    assert teach.answer.tags == kinds
    teach.correct(1, SLOT)  # what went on with it begins now
    assert teach.answer.tags == ["O", f"B-{SLOT}", "B-fromloc.city_name", *kinds[3:]]
    teach.correct(0, "nowhere")
    assert "nowhere&#x27; is none of the corpus&#x27;s" in teach._message.value


def test_training_teaches_and_says_what_it_took(teach, trainer, corpus, vocabulary, parameters):
    teach.correct("pittsburgh", SLOT)
    teach.correct_intent("atis_flight")
    wanted = teach.answer
    samples = encode(corpus.dev, vocabulary, corpus, trainer.config)
    before = score(corpus, corpus.dev, trainer.predict(samples))
    teach.train(steps=10, old=2)
    after = score(corpus, corpus.dev, trainer.predict(samples))
    assert teach.before.scores == before and teach.after.scores == after
    assert teach.losses[1] < 0.5 * teach.losses[0]
    (found,) = teach._label([wanted.words])
    assert (found.intent, found.tags) == (wanted.intent, wanted.tags) == (teach.answer.intent, teach.answer.tags)
    assert teach.taught.words == [wanted.words] and teach.taught.slots == [wanted.tags]
    said = teach._result.value
    lost = sum(teach.before.right & ~teach.after.right)
    for part in (f"{teach.losses[0]:.2f} → {teach.losses[1]:.2f}", "30 updates, 20 of them on old", f"<b>{lost}</b>"):
        assert part in said
    assert "ms</b> on a U50 (modelled; this computer's emulation" in said and "mJ</b> (modelled" in said
    assert said.count("a similar sentence") >= 3
    teach.undo()
    assert all(np.array_equal(trainer.store_parameters()[name], parameters[name]) for name in parameters)
    assert len(teach.taught) == 0 and teach._buttons["Undo"].disabled


def test_undo_keeps_the_corrections_to_train_on_them_in_another_way(teach):
    teach.correct("pittsburgh", SLOT)
    teach.correct_intent("atis_flight")
    wanted = teach.answer
    teach.train(steps=1, old=0)
    teach.train(steps=1, old=0)
    for _ in range(2):
        teach.undo()
        assert (teach.answer.tags, teach.answer.intent) == (wanted.tags, wanted.intent)
        assert teach.answer.tag_chances == wanted.tag_chances or not teach._buttons["Undo"].disabled
        assert "Your corrections of this sentence are kept" in teach._result.value
    teach.train(steps=1, old=1)
    assert teach.taught.slots == [wanted.tags]
    teach.ask("to boston")
    teach.undo()
    assert teach.answer.words == ["to", "boston"] and "corrections" not in teach._result.value


def test_a_fault_leaves_the_parameters_of_before(trainer, corpus, vocabulary, parameters):
    teach = Teach(trainer, corpus, vocabulary, SENTENCE, learning_rate=1e6)
    teach.train(steps=20)
    assert "the parameters are those of before" in teach._message.value and len(teach.taught) == 0
    assert all(np.array_equal(trainer.store_parameters()[name], parameters[name]) for name in parameters)


@pytest.mark.long
def test_sentences_are_saved_as_a_corpus_and_taken_up_again(teach, trainer, corpus, vocabulary, tmp_path):
    folder = tmp_path / "mine"
    teach.save(str(folder))
    assert "nothing has been taught yet" in teach._message.value and not folder.exists()
    teach.correct("pittsburgh", SLOT)
    teach.train(steps=1, old=0)
    teach.save(str(folder))
    saved = read_corpus(folder)
    assert saved.train == teach.taught and saved.dev == corpus.dev and saved.slot_labels == corpus.slot_labels
    again = Teach(trainer, corpus, vocabulary, SENTENCE, taught=saved.train)
    again.correct("pittsburgh", "O")
    again.train(steps=1, old=1)
    assert (again.taught.words, again.taught.slots) == (saved.train.words, [["O"] * 6])  # the same sentence
    again.save(str(folder))
    assert "is there already" in again._message.value and read_corpus(folder).train == saved.train


def test_it_teaches_pytorch_too(corpus, vocabulary):
    trainer = ReferenceTrainer(ModelConfig(encoders=1))
    short = type(corpus)(**{**vars(corpus), "dev": corpus.dev[:20]})
    teach = Teach(trainer, short, vocabulary, "to boston")
    teach.train(steps=2, old=1)
    assert "ms</b> (measured)" in teach._result.value and "20 utterances" in teach._result.value
