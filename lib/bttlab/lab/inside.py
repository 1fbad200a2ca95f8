"""Look inside a sentence: the attention of each head, and how much the intent depends on each token."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import ipywidgets as widgets
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from bttlab.data import Corpus, Vocabulary, encode
from bttlab.data.spans import percent
from bttlab.lab.charts import PALETTE, new_figure, style
from bttlab.lab.explorer import Explorer, button, control, row, slider
from bttlab.model import ModelConfig, Trainer, Transformer
from bttlab.runs.evaluation import trained_network
from bttlab.runs.labelling import placeholder_split, typed_pieces
from bttlab.util.errors import BttlabError

FIRST = "[CLS]"
LARGEST_LABEL = 8.0  # points; smaller for long sentences
COLUMNS = 6  # of the small panels
COLOURS = "Blues"


@dataclass(frozen=True)
class Inside:
    """What a model computes for one sentence, in PyTorch with the parameters of a trainer."""

    tokens: tuple[str, ...]  # [CLS], then the words
    intent: int  # id of the predicted intent
    probability: float
    attention: np.ndarray  # float32 (encoders, heads, T, T): weight of each key (column) for each query (row)
    # Norm of the gradient of log p(intent) with respect to each token's row of the embedding, float32 (T,), as a share
    # of the sum over the tokens (Li et al., arXiv 1506.01066, section 5: first-derivative saliency).
    influence: np.ndarray


class _Recorded:
    """Attention as in `Encoder.attend`, that keeps its weights."""

    def __init__(self) -> None:
        self.weights = torch.empty(0)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        self.weights = scores.softmax(-1)
        return self.weights @ value


def look_inside(network: Transformer, tokens: Sequence[int], names: Sequence[str]) -> Inside:
    """Compute the attention and the influence of the tokens of one sentence; `tokens` begin with that of [CLS]."""
    recorded = [_Recorded() for _ in network.encoders]
    before = [encoder.attend for encoder in network.encoders]
    try:
        for encoder, record in zip(network.encoders, recorded, strict=True):
            encoder.attend = record
        with torch.no_grad():
            rows = network.embedding(torch.as_tensor(tokens, dtype=torch.long))
        rows.requires_grad_(True)
        x = rows
        for encoder in network.encoders:
            x = encoder(x)
        logits, _ = network.label(x)
        chances = logits.log_softmax(-1)
        intent = int(chances.argmax())
        (gradient,) = torch.autograd.grad(chances[intent], rows)
        probability = float(chances[intent].detach().exp())
    finally:
        for encoder, attend in zip(network.encoders, before, strict=True):
            encoder.attend = attend
    influence = gradient.norm(dim=-1)
    attention = torch.stack([record.weights[0].detach() for record in recorded]).float()
    share = influence / influence.sum().clamp_min(torch.finfo(influence.dtype).tiny)
    return Inside(tuple(names), intent, probability, attention.numpy(), share.float().numpy())


class InsideExplorer(Explorer):
    """Type a sentence, choose an encoder and a head: its attention, and the tokens that the intent depends on.

    The parameters are those that the trainer has when a sentence is entered, or *Look again* is pressed. PyTorch
    computes the figures from them.

    Parameters
    ----------
    trainer : Trainer
        Of a `ModelConfig`.
    corpus : Corpus
        Whose labels the model has.
    vocabulary : Vocabulary
        Encodes the words.
    sentence : str
        Shown at first.

    Raises
    ------
    BttlabError
        If the trainer's model is not a `ModelConfig`'s.
    """

    def __init__(self, trainer: Trainer, corpus: Corpus, vocabulary: Vocabulary, sentence: str):
        if not isinstance(trainer.config, ModelConfig):
            raise BttlabError("InsideExplorer shows the encoders of a ModelConfig: open a trainer for one")
        self._trainer, self._corpus, self._vocabulary = trainer, corpus, vocabulary
        self.inside: Inside | None = None
        self._looked_at = ""  # the sentence of `inside`
        encoders, heads = trainer.config.encoders, trainer.config.heads
        self.sentence = control(widgets.Text, "sentence", "560px", 70, value=sentence, continuous_update=False)
        self.encoder = slider(1, 1, encoders, "encoder")
        self.head = slider(1, 1, heads, "head")
        again = button("Look again", "refresh", self.look_again, "120px")
        lines = -(-heads // COLUMNS)
        figures = [new_figure(8.3, 0.5 + 1.25 * lines), new_figure(4.6, 4.0), new_figure(3.7, 4.0)]
        self._heads = figures[0].subplots(lines, min(heads, COLUMNS), squeeze=False).ravel()
        self._attention, self._influence = (figure.subplots() for figure in figures[1:])
        super().__init__(*figures, controls=[row(self.sentence, again), row(self.encoder, self.head)])

    def look_again(self) -> None:
        """Compute the figures from the trainer's present parameters."""
        self._looked_at = ""
        self.refresh()

    def _update(self) -> tuple[str, str]:
        words = [piece.form for piece in typed_pieces(self.sentence.value, self._corpus, self._vocabulary)]
        most = self._trainer.config.sequence_length - 1
        if not 0 < len(words) <= most:
            raise BttlabError(f"the sentence has {len(words)} words: the model takes 1 to {most}; change it")
        if self.sentence.value != self._looked_at:
            split, config = placeholder_split([words], self._corpus), self._trainer.config
            samples = encode(split, self._vocabulary, self._corpus, config)
            ids = samples.tokens[0][: int(samples.lengths[0])]
            self.inside = look_inside(trained_network(self._trainer), ids.tolist(), (FIRST, *words))
            self._looked_at = self.sentence.value
        inside = self.inside
        weights = inside.attention[self.encoder.value - 1]
        for number, axes in enumerate(self._heads):
            axes.clear()
            axes.set_axis_off()
            if number < len(weights):
                self._draw_small(axes, weights[number], number)
        _draw_attention(self._attention, weights[self.head.value - 1], inside.tokens)
        self._attention.set_title(
            f"Encoder {self.encoder.value}, head {self.head.value}: attention (%)",
            loc="left",
            fontsize=10,
            fontweight="bold",
        )
        _draw_influence(self._influence, inside)
        names = self._corpus.intent_labels
        intent = names[inside.intent] if inside.intent < len(names) else f"label {inside.intent}"
        strongest = int(inside.influence.argmax())
        unknown = [word for word in words if word not in self._vocabulary]
        results = (
            f"intent <b>{escape(intent)}{percent(inside.probability)}</b>, which depends most on "
            f"<b>{escape(inside.tokens[strongest])}</b> ({inside.influence[strongest]:.0%} of the gradient's norm); "
            "computed in PyTorch from the trainer's parameters"
        )
        note = f"unknown to the vocabulary: {', '.join(unknown)}" if unknown else ""
        return results, note

    def _draw_small(self, axes: Axes, weights: np.ndarray, number: int) -> None:
        axes.imshow(weights, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
        is_chosen = number == self.head.value - 1
        axes.set_title(f"head {number + 1}", fontsize=8, pad=2, fontweight="bold" if is_chosen else "normal")
        size = len(weights)
        frame = {"color": PALETTE[1] if is_chosen else "0.6", "linewidth": 2.5 if is_chosen else 0.8}
        axes.plot([-0.5, size - 0.5, size - 0.5, -0.5, -0.5], [-0.5, -0.5, size - 0.5, size - 0.5, -0.5], **frame)


def _draw_attention(axes: Axes, weights: np.ndarray, tokens: Sequence[str]) -> None:
    axes.clear()
    axes.imshow(weights, cmap=COLOURS, vmin=0, vmax=1, aspect="auto")
    size, places = _label_size(len(tokens)), range(len(tokens))
    axes.set_xticks(places, tokens, fontsize=size, rotation=90)
    axes.set_yticks(places, tokens, fontsize=size)
    axes.set(xlabel="to this token", ylabel="from this token")
    if len(tokens) <= 12:  # numbers that are legible
        for query, key in np.ndindex(weights.shape):
            value = weights[query, key]
            colour = "white" if value > 0.55 else "black"
            axes.text(key, query, f"{100 * value:.0f}", ha="center", va="center", fontsize=6.5, color=colour)


def _draw_influence(axes: Axes, inside: Inside) -> None:
    axes.clear()
    style(axes, "What the intent depends on", "share of the gradient's norm (%)", "")
    places = range(len(inside.tokens))
    axes.barh(places, 100 * inside.influence, color=PALETTE[0], height=0.7)
    axes.set_yticks(places, inside.tokens, fontsize=_label_size(len(inside.tokens)))
    axes.set_ylim(len(inside.tokens) - 0.4, -0.6)


def _label_size(tokens: int) -> float:
    return min(LARGEST_LABEL, 8.0 * 22 / max(tokens, 22))
