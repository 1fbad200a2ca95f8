"""What converters of annotations lose: spans and labels that go in, and the chunks that come out."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

from probe import main, row

Span = tuple[int, int, str]
CONFIG = """<View><Labels name="label" toName="text"><Label value="city"/><Label value="date"/></Labels>
<Choices name="intent" toName="text"><Choice value="flight"/></Choices><Text name="text" value="$text"/></View>"""


def chunks(words: list[str], tags: list[str]) -> str:
    """Return the chunks of IOB2 tags as text."""
    found: list[list[str]] = []
    for word, tag in zip(words, tags, strict=True):
        if tag.startswith("B-"):
            found.append([tag[2:], word])
        elif tag.startswith("I-"):
            found[-1].append(word)
    return ", ".join(f"{kind} {' '.join(rest)!r}" for kind, *rest in found) or "nothing"


def region(kind: str, **value) -> dict:
    name = "label" if kind == "labels" else "intent"
    return {"from_name": name, "to_name": "text", "type": kind, "value": value}


def label_studio(annotations: list[list[dict]], text: str) -> str:
    """Return what is in the CoNLL file of Label Studio's converter, sentence by sentence."""
    from label_studio_sdk.converter import Converter

    task = {"id": 1, "data": {"text": text}}
    task["annotations"] = [{"id": number, "result": result} for number, result in enumerate(annotations)]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        source = Path(folder, "tasks.json")
        source.write_text(json.dumps([task]))
        Converter(CONFIG, None, download_resources=False).convert_to_conll2003(str(source), folder, is_dir=False)
        sentences = Path(folder, "result.conll").read_text().split("\n", 1)[1].strip().split("\n\n")
    rows = [[line.split() for line in sentence.splitlines()] for sentence in sentences]
    return "; ".join(chunks([word for word, *_ in lines], [tag for *_, tag in lines]) for lines in rows)


def city(begin: int, end: int, text: str, *labels: str) -> dict:
    return region("labels", start=begin, end=end, text=text, labels=list(labels))


@row("label-studio-sdk", "`convert_to_conll2003`: two spans that overlap")
def overlap() -> dict:
    text = "fly to new york city today"
    spans = [city(7, 20, "new york city", "city"), city(11, 26, "york city today", "date")]
    found = label_studio([spans], text)
    return {"in": "city 'new york city', date 'york city today'", "out": found}


@row("label-studio-sdk", "a span inside another")
def nested() -> dict:
    spans = [city(7, 20, "new york city", "city"), city(11, 15, "york", "date")]
    found = label_studio([spans], "fly to new york city")
    return {"in": "city 'new york city', date 'york'", "out": found}


@row("label-studio-sdk", "a region with two labels")
def two_labels() -> dict:
    found = label_studio([[city(7, 13, "boston", "city", "date")]], "fly to boston")
    return {"in": "city and date 'boston'", "out": found}


@row("label-studio-sdk", "a choice for the text (intent) beside a span")
def intent() -> dict:
    found = label_studio([[city(7, 13, "boston", "city"), region("choices", choices=["flight"])]], "fly to boston")
    return {"in": "intent flight, city 'boston'", "out": found}


@row("label-studio-sdk", "two annotators of one text")
def two_annotators() -> dict:
    found = label_studio([[city(7, 13, "boston", "city")], []], "fly to boston")
    return {"in": "city 'boston', and no span", "out": f"two sentences: {found}"}


def spacy_conll(text: str) -> str:
    from spacy.training.converters import conll_ner_to_docs

    docs = conll_ner_to_docs(text, n_sents=1, no_print=True)
    return ", ".join(f"{span.label_} {span.text!r}" for doc in docs for span in doc.ents) or "nothing"


@row("spacy", "`convert --converter conll`: BIOES")
def bioes() -> dict:
    found = spacy_conll("lima S-city\nor O\nnew B-city\nyork E-city\n")
    return {"in": "city 'lima', city 'new york'", "out": found}


@row("spacy", "IOB1: a tag `I-` begins a chunk, two that touch")
def touching() -> dict:
    found = spacy_conll("lima I-city\nquito B-city\nor O\nboston I-city\n")
    return {"in": "city 'lima', city 'quito', city 'boston'", "out": found}


@row("spacy", "two columns of tags")
def two_columns() -> dict:
    found = spacy_conll("new B-city B-loc\nyork I-city I-loc\n")
    return {"in": "city 'new york' and loc 'new york'", "out": found}


@row("spacy", "`Example.from_dict`: a span with a space at its end")
def span_with_space() -> dict:
    import spacy
    from spacy.training import Example

    doc = spacy.blank("en").make_doc("fly to boston now")
    entities = Example.from_dict(doc, {"entities": [(7, 14, "city")]}).reference.ents
    found = ", ".join(f"{span.label_} {span.text!r}" for span in entities) or "nothing"
    return {"in": "city 'boston '", "out": found}


@row("nltk", "`conllstr2tree`, with its defaults")
def nltk_chunks() -> dict:
    from nltk.chunk.util import conllstr2tree

    tree = conllstr2tree("new N B-city\nyork N I-city\nto N O\nlima N B-NP")
    kept = [f"{part.label()} {' '.join(word for word, _ in part)!r}" for part in tree if hasattr(part, "label")]
    return {"in": "city 'new york', NP 'lima'", "out": ", ".join(kept)}


@row("seqeval", "`get_entities`: names without a prefix")
def seqeval_names() -> dict:
    from seqeval.metrics.sequence_labeling import get_entities

    found = ", ".join(f"{kind} {begin} to {end}" for kind, begin, end in get_entities(["city", "city", "O"]))
    return {"in": "city 0 to 1", "out": found}


@row("seqeval", "`get_entities`: the type `O-city`")
def seqeval_outside() -> dict:
    from seqeval.metrics.sequence_labeling import get_entities

    found = ", ".join(f"{kind} {begin} to {end}" for kind, begin, end in get_entities(["B-fly", "O-city"]))
    return {"in": "tags `B-fly`, `O-city`", "out": found}


if __name__ == "__main__":
    main()
