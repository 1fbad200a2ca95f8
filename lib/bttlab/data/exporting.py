"""Predicted labels as files of annotation tools, to correct them there and to import them again."""

from collections.abc import Sequence
from typing import Any

from .corpus import OUTSIDE, PAD, CorpusError
from .label_names import split_intents
from .spans import Labelled
from .tokenizer import Piece


def label_studio_tasks(
    texts: Sequence[str], pieces: Sequence[Sequence[Piece]], answers: Sequence[Labelled], model: str
) -> list[dict[str, Any]]:
    """Return tasks of Label Studio with predictions: spans of the control `label`, the choice `intent`.

    Offsets count characters, as Label Studio does. A labelling interface of these names shows them:
    `<Text name="text" value="$text"/>`, `<Labels name="label" toName="text">`, `<Choices name="intent" toName="text">`.
    """
    tasks = []
    for text, of_text, answer in zip(texts, pieces, answers, strict=True):
        results: list[dict[str, Any]] = []
        for span in answer.spans if answer.tags else ():
            if span.slot == OUTSIDE:
                continue
            start, end = of_text[span.first].start, of_text[span.end - 1].end
            value = {"start": start, "end": end, "text": text[start:end], "labels": [span.slot]}
            results.append(_result(f"s{len(results)}", "label", "labels", value, span.probability))
        if answer.intent is not None:
            value = {"choices": split_intents(answer.intent)}
            results.append(_result(f"s{len(results)}", "intent", "choices", value, answer.intent_probability))
        prediction: dict[str, Any] = {"model_version": model, "result": results}
        if answer.intent_probability is not None:
            prediction["score"] = answer.intent_probability
        tasks.append({"data": {"text": text}, "predictions": [prediction]})
    return tasks


def _result(id_: str, control: str, kind: str, value: dict[str, Any], score: float | None) -> dict[str, Any]:
    known = {} if score is None else {"score": score}
    return {"id": id_, "from_name": control, "to_name": "text", "type": kind, "value": value, **known}


def conll_text(texts: Sequence[str], pieces: Sequence[Sequence[Piece]], answers: Sequence[Labelled]) -> str:
    """Return sentences as CoNLL: the intent as a comment, then a word as it was written and its BIO tag in each line.

    Subwords are joined to words. Raises CorpusError of a model that labels no words.
    """
    blocks = []
    for text, of_text, answer in zip(texts, pieces, answers, strict=True):
        if not answer.tags:
            raise CorpusError("the model labels no words, and CoNLL has a tag for each; take --label-studio or --json")
        words: list[tuple[int, int, str]] = []
        for piece, tag in zip(of_text, answer.tags, strict=True):
            if tag == PAD and words:
                words[-1] = (words[-1][0], piece.end, words[-1][2])
            else:
                words.append((piece.start, piece.end, tag))
        lines = [] if answer.intent is None else [f"# intent: {answer.intent}"]
        blocks.append("\n".join([*lines, *(f"{text[start:end]}\t{tag}" for start, end, tag in words)]))
    return "".join(f"{block}\n\n" for block in blocks)
