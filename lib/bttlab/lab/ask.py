"""Ask the model on the card: type a sentence, read its intent and its slots with their probabilities."""

import threading
from collections.abc import Sequence
from html import escape

import ipywidgets as widgets

from bttlab.data import Corpus, Split, Vocabulary
from bttlab.data.corpus import OUTSIDE
from bttlab.data.spans import Labelled, Span, percent
from bttlab.lab.cells import Kept, close_widgets
from bttlab.lab.explorer import button, control, guarded, row
from bttlab.lab.frame import RESULT_CLASS, Frame
from bttlab.lab.picture import alert
from bttlab.model import Trainer
from bttlab.runs.labelling import label, typed_split

# Okabe and Ito's colours, paled so that black text is legible on them; the slot's name is below the words.
TINTS = ("#8CC8EE", "#F2B94B", "#6CCDAE", "#E3A8C8", "#F5EC7A", "#C9B8F2", "#F0A07C")


class Ask:
    """A line to type into, and the model's answer below it. Make one the last line of a cell.

    Parameters
    ----------
    trainer : Trainer
        Has the parameters that answer.
    corpus : Corpus
        Whose labels the model has.
    vocabulary : Vocabulary
        Encodes the words.
    sentence : str
        In the line at first.
    """

    def __init__(self, trainer: Trainer, corpus: Corpus, vocabulary: Vocabulary, sentence: str = ""):
        self.trainer, self.corpus, self._vocabulary = trainer, corpus, vocabulary
        self.answer: Labelled | None = None
        self._colours: dict[str, str] = {}
        self._lock = threading.RLock()
        empty = {"placeholder": "type a sentence and press Enter", "continuous_update": False}
        self._text = control(widgets.Text, "sentence", "560px", 70, **empty)
        self._message, self._unknown = widgets.HTML(), widgets.HTML()
        self._answer = widgets.VBox(layout={"overflow": "visible"})
        self._answer.add_class(RESULT_CLASS)
        line = row(self._text, button("Ask", "question", self.ask, "90px"))
        self.widget = Frame([line, self._message, self._answer, self._unknown])
        self._saved = Kept(self.widget)
        self._text.observe(lambda change: change["new"].strip() and self.ask(), "value")
        if sentence:
            self.ask(sentence)

    def _ipython_display_(self) -> None:
        self._saved.display(self.widget, lambda: close_widgets(self.widget))
        self._keep()

    def _say(self, message: str = "") -> None:
        self._message.value = alert(message)

    def _enable(self) -> None:
        """Enable the buttons that have an effect now: here all have."""

    def _keep(self) -> None:
        if self.answer is not None:
            self._saved.update(self._html(self.answer), " ".join(self.answer.words))

    @guarded
    def ask(self, sentence: str | None = None) -> None:
        """Ask about a sentence; by default about the one in the line, with the parameters of now."""
        if sentence is not None and sentence != self._text.value:
            self._text.value = sentence  # asks
            return
        self._begin_with(*self._label(typed_split([self._text.value], self.corpus, self._vocabulary)))

    def _begin_with(self, answer: Labelled) -> None:
        self.answer = answer
        self._show()

    def _label(self, sentences: Sequence[Sequence[str]] | Split) -> list[Labelled]:
        return label(self.trainer, self.corpus, self._vocabulary, sentences)

    def _show(self) -> None:
        before = self._answer.children
        self._answer.children = self._views(self.answer)
        close_widgets(*before)
        unknown = ", ".join(map(escape, self.answer.unknown))
        note = (
            f"Unknown to the vocabulary: <b>{unknown}</b>. The model sees that a word is there, not which."
            if unknown
            else ""
        )
        self._unknown.value = f"<div role='status' style='line-height:1.35'>{note}</div>"
        self._keep()

    def _views(self, answer: Labelled) -> list[widgets.Widget]:
        return [widgets.HTML(self._html(answer))]

    # --- as HTML

    def colour_of(self, slot: str) -> str:
        """Return a slot's colour: the same in all answers of this widget."""
        return self._colours.setdefault(slot, TINTS[len(self._colours) % len(TINTS)])

    def _html(self, answer: Labelled) -> str:
        named = "" if answer.intent is None else escape(f"{answer.intent}{percent(answer.intent_probability)}")
        intent = named and f"<div style='margin-bottom:4px'>intent <b>{named}</b></div>"
        spans = "".join(self._span(answer, span) for span in answer.spans) or escape(" ".join(answer.words))
        return f"<div style='line-height:1.35' role='group' aria-label='answer'>{intent}<div>{spans}</div></div>"

    def _span(self, answer: Labelled, span: Span) -> str:
        words = " ".join(
            f"<u style='text-decoration-style:dotted' title='unknown to the vocabulary'>{escape(word)}</u>"
            if word in answer.unknown
            else escape(word)
            for word in answer.words[span.first : span.end]
        )
        below = "" if span.slot == OUTSIDE else f"{span.slot}{percent(span.probability)}"
        look = "" if span.slot == OUTSIDE else f"background:{self.colour_of(span.slot)};color:black;"
        return (
            "<span style='display:inline-block;vertical-align:top;margin:0 6px 4px 0;text-align:center'>"
            f"<span style='{look}padding:1px 5px;border-radius:3px'>{words}</span>"
            f"<br><small>{escape(below)}</small></span>"
        )
