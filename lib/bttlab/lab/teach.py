"""Teach the model on the card: correct its answer, train a few steps, and see what it has learned and forgotten."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import ipywidgets as widgets
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from bttlab.data import Corpus, CorpusError, Samples, Split, Vocabulary, encode
from bttlab.data.corpus import OUTSIDE, PAD, UNK, files_of, store_corpus
from bttlab.data.metrics import Scores, named, score
from bttlab.data.samples import joined
from bttlab.data.spans import Labelled, Span, percent
from bttlab.lab.ask import Ask
from bttlab.lab.energy_meters import EnergyMeter, meter_of
from bttlab.lab.explorer import button, control, guarded, row, slider
from bttlab.lab.frame import RESULT_CLASS
from bttlab.model import LEARNING_RATES, NumericalFault, Optimizer, Predictions, Trainer
from bttlab.util.errors import BttlabError
from bttlab.util.quantities import in_digits

SIMILAR = 3  # sentences of dev that are shown
STEPS, MOST_STEPS, OLD, MOST_OLD = 5, 40, 2, 16
INTENT = -1  # in the place of a word
MOST_UNDO = 20  # states, of about a megabyte each
WHY_OLD = "Old sentences between the new ones keep in place what they need: the model forgets less, and takes longer."
_SIMILAR = "<p style='margin:6px 0 0'><small>a similar sentence, {}</small></p>"


@dataclass(frozen=True)
class _State:
    """What an undo brings back."""

    parameters: dict
    optimizer_state: dict
    taught: Split
    answer: Labelled  # with the labels that were trained on
    corrected: set[int]  # places that the user has labelled


@dataclass(frozen=True)
class Dev:
    """The dev split under the parameters of a moment."""

    predictions: Predictions
    scores: Scores
    right: np.ndarray  # whether an utterance's intent and all of its tags are

    @classmethod
    def of(cls, trainer: Trainer, corpus: Corpus, samples: Samples) -> "Dev":
        predictions = trainer.predict(samples)
        intents, tags = named(corpus, corpus.dev, predictions)
        rows = zip(intents, corpus.dev.intents, tags, corpus.dev.slots, strict=True)
        right = np.array([intent == gold and guess == slots for intent, gold, guess, slots in rows])
        return cls(predictions, score(corpus, corpus.dev, predictions), right)


class Teach(Ask):
    """Ask the model on the card, correct its answer, and train on it. Make one the last line of a cell.

    Nothing leaves the card but the answer: sentence, labels and parameters stay on this machine.

    Parameters
    ----------
    trainer : Trainer
        Trains and answers.
    corpus : Corpus
        Its train split gives the old sentences, its dev split tells what is forgotten.
    vocabulary : Vocabulary
        Encodes the words.
    sentence : str
        In the line at first.
    learning_rate : float
        Of a step.
    taught : Split, optional
        Sentences taught before, such as `read_corpus(folder).train` of a folder that was saved.

    Attributes
    ----------
    before, after : Dev
        The dev split before and after the last training.
    """

    before: Dev
    after: Dev

    def __init__(
        self,
        trainer: Trainer,
        corpus: Corpus,
        vocabulary: Vocabulary,
        sentence: str = "",
        learning_rate: float = LEARNING_RATES["sgd"],
        taught: Split | None = None,
    ):
        self.taught = taught or Split()
        self.losses: tuple[float, float] | None = None  # of the last sentence, before and after its training
        self._rate, self._draw = learning_rate, np.random.default_rng(0)
        self._train = encode(corpus.train, vocabulary, corpus, trainer.config)
        self._dev = encode(corpus.dev, vocabulary, corpus, trainer.config)
        self._slots = list(dict.fromkeys(tag[2:] for tag in corpus.slot_labels if "-" in tag))
        self._rare = TfidfVectorizer(analyzer=set).fit(corpus.train.words)  # rare words count for more
        self._states: list[_State] = []  # to go back to
        self._chosen: int | None = None
        self._mine: set[int] = set()  # places that the user has labelled since the answer
        self._corrected: set[int] = set()  # places labelled before the training on this sentence
        self._saved_to = ""  # where the sentences taught are saved
        self._choice = control(widgets.Dropdown, "", "420px")
        self._choice.style.description_width, self._choice.layout.display = "initial", "none"
        self._choice.observe(lambda change: self._set(change["new"]), "value")
        self.steps, self.old = slider(STEPS, 1, MOST_STEPS, "steps"), slider(OLD, 0, MOST_OLD, "old per step")
        buttons = ("Train", "graduation-cap", self.train), ("Undo", "undo", self.undo), ("Save", "save", self.save)
        self._buttons = {name: button(name, icon, action, "90px") for name, icon, action in buttons}
        self._folder = control(widgets.Text, "folder", "220px", 60, value="taught")
        self._result, self._kept = widgets.HTML(), widgets.HTML()
        self._result.add_class(RESULT_CLASS)
        super().__init__(trainer, corpus, vocabulary, sentence)
        controls = row(self.steps, self.old, self._buttons["Train"], self._buttons["Undo"])
        saving = row(self._folder, self._buttons["Save"], self._kept)
        why = widgets.HTML(_small(WHY_OLD))
        self.widget.children = [*self.widget.children, self._choice, controls, why, self._result, saving]
        self._enable()

    def dev_scores(self) -> Scores:
        """Score all of dev with the parameters of now."""
        return Dev.of(self.trainer, self.corpus, self._dev).scores

    def unlearned(self) -> list[Labelled]:
        """Return the answers to sentences taught that are not what was taught."""
        if not len(self.taught):
            return []
        found = zip(self._label(self.taught), self.taught.slots, self.taught.intents, strict=True)
        return [got for got, tags, intent in found if got.tags not in ([], tags) or got.intent not in (None, intent)]

    # --- the user's labels

    def _begin_with(self, answer: Labelled) -> None:
        self._mine, self._corrected, self._chosen = set(), set(), None
        self._choice.layout.display = "none"
        super()._begin_with(answer)

    def _views(self, answer: Labelled) -> list[widgets.Widget]:
        """Buttons, so that a key reaches each word: a box for each span, with its slot below."""
        intent = []
        if answer.intent is not None:
            chance = answer.intent_probability if INTENT not in self._mine else None
            button = self._word(INTENT, answer.intent, "", "intent")
            intent = [row(widgets.HTML("intent"), button, widgets.HTML(self._sure([INTENT], chance)))]
        return [*intent, row(*(self._box(answer, span) for span in answer.spans))]

    def _box(self, answer: Labelled, span: Span) -> widgets.Widget:
        places = range(span.first, span.end)
        colour = "" if span.slot == OUTSIDE else self.colour_of(span.slot)
        words = [self._word(place, answer.words[place], colour, span.slot) for place in places]
        name = "" if span.slot == OUTSIDE else f"{escape(span.slot)}<br>"
        below = widgets.HTML(_small(f"{name}{self._sure(places, span.probability)}", "center"))
        return widgets.VBox([widgets.HBox(words), below], layout={"align_items": "center", "margin": "0 4px 0 0"})

    def _sure(self, places: Iterable[int], probability: float | None) -> str:
        return "<b>yours</b>" if self._mine & set(places) else percent(probability).strip()

    def _word(self, place: int, text: str, colour: str, slot: str) -> widgets.Button:
        unknown = ", unknown to the vocabulary" if text in self.answer.unknown else ""
        button = widgets.Button(description=text, tooltip=f"{text}: {slot}{unknown}; click to correct it")
        button.layout.width, button.layout.margin = "auto", "1px"
        button.style.text_decoration = "underline dotted" if unknown else None
        if colour:
            button.style.button_color, button.style.text_color = colour, "black"
        button.on_click(lambda _: self._choose(place))
        return button

    @guarded
    def _choose(self, place: int) -> None:
        """Offer the labels of a word, or of the sentence, the likely ones first."""
        answer, self._chosen = self.answer, None  # so that setting the options sets no label
        place = _head(answer, place)
        if place == INTENT:
            chances, now, what = answer.intent_chances, answer.intent, "the intent is"
            names = [name for name in self.corpus.intent_labels if name != UNK]
        else:
            by_tag, now = answer.tag_chances[place], _slot(answer.tags[place])
            chances = {OUTSIDE: by_tag.get(OUTSIDE, 0.0)}
            chances |= {slot: by_tag.get(f"B-{slot}", 0.0) + by_tag.get(f"I-{slot}", 0.0) for slot in self._slots}
            names, what = list(chances), f"{answer.words[place]} is"
        ranked = sorted(names, key=lambda name: -chances[name])
        shown = {OUTSIDE: "O (no slot)"}
        self._choice.options = [(f"{shown.get(name, name)}{percent(chances[name])}", name) for name in ranked]
        self._choice.description = what
        self._choice.value = now if now in names else None
        self._choice.layout.display = None
        self._chosen = place
        self._choice.focus()

    @guarded
    def _set(self, label: str | None) -> None:
        if self._chosen is not None and label is not None:
            self._correct(self._chosen, label)

    @guarded
    def correct(self, word: int | str, slot: str) -> None:
        """Label a word yourself: by its place from 0 on, or by the word; the slot is one of the corpus's, or "O"."""
        self._correct(self._place_of(word), slot)

    @guarded
    def correct_intent(self, intent: str) -> None:
        self._correct(INTENT, intent)

    def _place_of(self, word: int | str) -> int:
        words = self._asked().words
        places = [n for n, spoken in enumerate(words) if word in (n, spoken)]
        if len(places) != 1:
            found = "is not in the sentence" if not places else f"is at {', '.join(map(str, places))}: give its place"
            raise BttlabError(f"{word!r} {found}")
        return places[0]

    def _correct(self, place: int, label: str) -> None:
        answer = self._asked()
        known = self.corpus.intent_labels if place == INTENT else [OUTSIDE, *self._slots]
        if label not in known or label in (PAD, UNK):
            raise BttlabError(f"{label!r} is none of the corpus's: {', '.join(known[:8])}, …")
        if place == INTENT:
            self.answer = replace(answer, intent=label)
        else:
            place = _head(answer, place)
            slots = [*map(_slot, answer.tags)]
            begins = [tag.startswith("B-") and n != place for n, tag in enumerate(answer.tags)]
            slots[place] = label
            self.answer = replace(answer, tags=_tags(slots, begins, self.corpus.slot_labels))
        self._mine.add(place)
        self._show()

    # --- training

    @guarded
    def train(self, steps: int | None = None, old: int | None = None) -> None:
        """Train `steps` times on the sentence with the labels shown, each time after `old` sentences known before."""
        answer, trainer, corpus = self._asked(), self.trainer, self.corpus
        steps, old = self.steps.value if steps is None else steps, self.old.value if old is None else old
        split = Split([answer.words], [answer.tags or [OUTSIDE] * len(answer.words)], [answer.intent or UNK])
        (sample, earlier) = (encode(part, self._vocabulary, corpus, trainer.config) for part in (split, self.taught))
        order = joined([self._train, earlier, sample])
        pool = self._draw.integers(0, len(order) - 1, (steps, old))
        chosen = np.concatenate([pool, np.full((steps, 1), len(order) - 1)], axis=1).ravel()
        self._states = [*self._states[1 - MOST_UNDO :], self._state()]
        corrected = self._states[-1].corrected
        trainer.load_parameters(self._states[-1].parameters)  # without the state of another optimizer
        sentences = self._similar_to(answer.words)
        self.before, loss, said = Dev.of(trainer, corpus, self._dev), trainer.predict(sample), self._label(sentences)
        meter = meter_of(trainer, Optimizer("sgd"))
        try:
            seconds = _train(trainer, order[chosen], self._rate, meter)
        except NumericalFault as fault:
            self._back()
            raise BttlabError(f"{fault}; the parameters are those of before") from None
        self.losses = float(loss.losses[0]), float(trainer.predict(sample).losses[0])
        self.after = Dev.of(trainer, corpus, self._dev)
        kept = [n for n, words in enumerate(self.taught.words) if words != answer.words]  # not the same sentence twice
        self.taught, self._saved_to = self.taught[kept] + split, ""
        (found,) = self._label(split)
        learned = (found.intent, found.tags) == (answer.intent, answer.tags)
        self._begin_with(replace(found, intent=answer.intent, tags=answer.tags))  # to train on again
        self._corrected = corrected
        now = self._label(sentences)
        parts = [
            _learned(self.losses, learned, len(chosen), steps * old),
            _cost(seconds, meter),
            _forgot(self.before, self.after),
            *map(self._similar, said, now),
        ]
        self._result.value = f"<div role='status' style='line-height:1.45'>{''.join(parts)}</div>"

    def _similar_to(self, words: list[str]) -> Split:
        """Return the sentences of dev that have the most in common with this one, but not itself."""
        dev = self.corpus.dev.words
        likeness = (self._rare.transform(dev) @ self._rare.transform([words]).T).toarray()[:, 0]
        return self.corpus.dev[[n for n in np.argsort(-likeness, kind="stable").tolist() if dev[n] != words][:SIMILAR]]

    def _similar(self, before: Labelled, now: Labelled) -> str:
        if (before.intent, before.tags) == (now.intent, now.tags):
            return f"{_SIMILAR.format('same answer as before')}{self._html(now)}"
        return f"{_SIMILAR.format('<b>before</b>')}{self._html(before)}{_SIMILAR.format('<b>now</b>')}{self._html(now)}"

    @guarded
    def undo(self) -> None:
        """Load the parameters from before the last training; what it taught is out of the small corpus again.

        The user's corrections of the sentence stay, to train on them in another way.
        """
        if not self._states:
            raise BttlabError("nothing has been taught yet")
        before = self._back()
        answer = self._asked()
        (found,) = self._label(Split([answer.words], [answer.tags or [OUTSIDE] * len(answer.words)], [UNK]))
        is_same = found.words == before.answer.words
        self._begin_with(replace(found, intent=before.answer.intent, tags=before.answer.tags) if is_same else found)
        kept = ""
        if is_same and before.corrected:
            self._mine, kept = set(before.corrected), " Your corrections of this sentence are kept."
            self._show()
        words = f"The parameters are those from before the last training.{kept}"
        self._result.value = f"<span role='status'>{words}</span>"

    def _state(self) -> _State:
        parameters, state = self.trainer.store_parameters(), self.trainer.store_optimizer_state()
        return _State(parameters, state, self.taught, self.answer, self._mine | self._corrected)

    def _back(self) -> _State:
        before = self._states.pop()
        self.taught, self._saved_to = before.taught, ""
        self.trainer.load_parameters(before.parameters, before.optimizer_state)
        return before

    @guarded
    def save(self, folder: str | None = None) -> None:
        """Save the sentences taught as the train split of a corpus, with the dev and test splits of this one.

        `bttlab train --data FOLDER` trains on it, and `Teach(..., taught=read_corpus(folder).train)` goes on with it.
        """
        place = Path(folder or self._folder.value).expanduser().resolve()
        if not len(self.taught):
            raise CorpusError("nothing has been taught yet: correct an answer and train first")
        if place.exists():
            raise CorpusError(f"{place} is there already: choose another name, nothing was written")
        corpus = self.corpus
        splits = {"train": self.taught, "dev": corpus.dev, "test": corpus.test}
        store_corpus(files_of(corpus.intent_labels, corpus.slot_labels, splits, corpus.tokenizer), place)
        self._saved_to = f", saved to {escape(str(place))}"

    def _asked(self) -> Labelled:
        if self.answer is None:
            raise BttlabError("there is no sentence yet: type one and press Enter")
        return self.answer

    def _enable(self) -> None:
        self._buttons["Train"].disabled = self.answer is None
        self._buttons["Undo"].disabled = not self._states
        self._buttons["Save"].disabled = not len(self.taught)
        count = len(self.taught)
        self._kept.value = f"{count} sentence{'s' * (count != 1)} taught{self._saved_to}"


def _train(trainer: Trainer, samples: Samples, rate: float, meter: EnergyMeter) -> float:
    """Train with plain SGD; return the seconds that it took, and add its energy to the meter."""
    begin = time.perf_counter()
    trainer.train(samples, Optimizer("sgd"), rate)
    seconds = time.perf_counter() - begin
    meter.advance(samples, seconds)
    return seconds


def _learned(losses: tuple[float, float], learned: bool, updates: int, old: int) -> str:
    before, after = losses
    now = "It says what you said." if learned else "It does not say what you said yet: train again, or take more steps."
    loss = f"Loss of this sentence <b>{before:.2f} → {after:.2f}</b> (measured)"
    return f"{loss} in {updates} updates, {old} of them on old sentences. {now}"


def _cost(seconds: float, meter: EnergyMeter) -> str:
    low, joules, high = (1e3 * value for value in meter.joules)
    if meter.seconds:
        here = f"this computer's emulation: {in_digits(1e3 * seconds)} ms, measured"
        took = f"<b>{in_digits(1e3 * meter.seconds)} ms</b> on a U50 (modelled; {here})"
    else:
        took = f"<b>{in_digits(1e3 * seconds)} ms</b> (measured)"
    if meter.provenance is None:
        return f"<br>Training took {took}; energy: none, {escape(meter.how)}."
    band = f", {low:,.0f} to {high:,.0f}" if high > low else ""
    return f"<br>Training took {took} and <b>{joules:,.0f} mJ</b> ({meter.provenance}{band}: {escape(meter.how)})."


def _forgot(before: Dev, after: Dev) -> str:
    lost, won = int((before.right & ~after.right).sum()), int((~before.right & after.right).sum())
    scores = ", ".join(
        f"{name} <b>{getattr(before.scores, key):.1%} → {getattr(after.scores, key):.1%}</b>".replace("%", " %")
        for name, key in (("intent accuracy", "intent_accuracy"), ("slot F1", "slot_f1"))
    )
    return (
        f"<br>All of dev, {len(before.right)} utterances (measured): {scores}; <b>{lost}</b> that were right are wrong "
        f"now (forgotten), {won} that were wrong are right."
    )


def _small(html: str, align: str = "left") -> str:
    return f"<div style='line-height:1.25;font-size:85%;text-align:{align}'>{html}</div>"


def _slot(tag: str) -> str:
    return tag if tag in (OUTSIDE, PAD) else tag[2:]


def _head(answer: Labelled, place: int) -> int:
    """Return the place of a word's first subword, which has the word's label."""
    while place > 0 and answer.tags and answer.tags[place] == PAD:
        place -= 1
    return place


def _tags(slots: Sequence[str], begins: Sequence[bool], labels: Sequence[str]) -> list[str]:
    """Return BIO tags of slots: a word goes on with the slot of the word before, unless it `begins` one."""
    tags = []
    before = OUTSIDE
    for n, slot in enumerate(slots):
        goes_on = before == slot and not begins[n] and f"I-{slot}" in labels
        before = before if slot == PAD else slot
        tags.append(slot if slot in (OUTSIDE, PAD) else f"{'I' if goes_on else 'B'}-{slot}")
    return tags
