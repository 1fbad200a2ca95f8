"""Label Studio: what each control of a labelling interface says is read, named as unused, or refused by what it is.

Results are written by hand as its documentation of tags shows them.
"""

import json

import pytest

from bttlab.data.importing import read_utterances
from bttlab.data.readers.account import Choices
from bttlab.data.readers.label_studio import CONTROLS
from command_line import refused
from test_data_import import read

TEXT = {"text": "fly to lima now"}
DIALOGUE = {"turns": [{"author": "me", "text": "fly to lima now"}, {"author": "you", "text": "lima it is"}]}
PLAIN, CITY = "fly/O to/O lima/O now/O", "fly/O to/O lima/B-city now/O"


def result(kind, value, name="x"):
    return {"id": "r1", "from_name": name, "to_name": "text", "type": kind, "origin": "manual", "value": value}


def region(**more):
    return {"start": 7, "end": 11, "text": "lima"} | more


def in_paragraph(first, last, start, end, text):
    value = {"start": first, "end": last, "startOffset": start, "endOffset": end, "text": text}
    return result("paragraphlabels", value | {"paragraphlabels": ["city"]})


SPAN = result("labels", region(labels=["city"]), "label")
NODE = {"start": "/text()[1]", "end": "/text()[1]", "startOffset": 1, "endOffset": 5, "text": "lima"}
GLOBAL = {"globalOffsets": {"start": 7, "end": 11}}
READ = {  # results, options, and the utterances that they are
    "Labels": ([SPAN], "", {CITY: "none"}),
    "HyperTextLabels": ([result("hypertextlabels", NODE | GLOBAL | {"hypertextlabels": ["city"]})], "", {CITY: "none"}),
    "of older versions": ([result("hypertextlabels", NODE | GLOBAL | {"htmllabels": ["city"]})], "", {CITY: "none"}),
    "Choices": ([SPAN, result("choices", {"choices": ["go"]})], "", {CITY: "go"}),
    "several Choices": ([result("choices", {"choices": ["go", "ask"]})], "", {PLAIN: "go#ask"}),
    "nested Choices": ([result("choices", {"choices": [["go", "by air"]]})], "", {PLAIN: "go/by_air"}),
    "Taxonomy": ([result("taxonomy", {"taxonomy": [["go"], ["go", "by air"]]})], "", {PLAIN: "go#go/by_air"}),
    "Rating as intent": ([result("rating", {"rating": 4})], "--label x", {PLAIN: "4"}),
    "Number as intent": ([result("number", {"number": 7})], "--label x", {PLAIN: "7"}),
    "DateTime as intent": ([result("datetime", {"datetime": "2024-03-09"})], "--label x", {PLAIN: "2024-03-09"}),
    "another choice ignored": (
        [SPAN, result("choices", {"choices": ["go"]}), result("choices", {"choices": ["glad"]}, "mood")],
        "--label x --ignore mood",
        {CITY: "go"},
    ),
}


def export(tmp_path, results, data=TEXT):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(3 * [{"id": 1, "data": data, "annotations": [{"id": 2, "result": results}]}]))
    return path


@pytest.mark.parametrize("case", READ)
def test_controls_that_label_are_read(tmp_path, capsys, case):
    results, options, expected = READ[case]
    content = export(tmp_path, results).read_text()
    assert read(tmp_path, capsys, "a.json", content, options.split()) == expected


UNUSED = {
    "Rating": (result("rating", {"rating": 4}), "x", "--label"),
    "Number": (result("number", {"number": 4.5}), "x", "--label"),
    "DateTime": (result("datetime", {"datetime": "2024-03-09"}), "x", "--label"),
    "TextArea": (result("textarea", {"text": ["fly to Lima now"]}), "x", "text of the annotator"),
    "TextArea of a region": (result("textarea", region(text=["the city"])), "x", "text of the annotator"),
    "Relations": (
        {"type": "relation", "from_id": "r1", "to_id": "r2", "direction": "right", "labels": ["of"]},
        "relation",
        "no relations between spans",
    ),
}


@pytest.mark.parametrize("case", UNUSED)
def test_controls_that_label_nothing_are_named_as_unused(tmp_path, case):
    one, name, why = UNUSED[case]
    split, account = read_utterances(export(tmp_path, [SPAN, one]))
    assert split.slots == 3 * [["O", "O", "B-city", "O"]] and why in account.unused[name]


IMAGE = {"x": 3.1, "y": 4.0, "width": 5, "height": 6, "rotation": 0}
REFUSED = {
    "Pairwise": (result("pairwise", {"selected": "left"}), "a comparison of two texts"),
    "Ranker": (result("ranker", {"ranker": {"rank": ["a", "b"]}}), "an order of items"),
    "RectangleLabels": (result("rectanglelabels", IMAGE | {"rectanglelabels": ["car"]}), "regions of an image"),
    "BrushLabels": (result("brushlabels", {"format": "rle", "rle": [1], "brushlabels": ["car"]}), "of an image"),
    "KeyPoint": (result("keypoint", IMAGE), "regions of an image (KeyPoint)"),
    "TimeSeriesLabels": (result("timeserieslabels", {"start": 1.5, "end": 2, "timeserieslabels": ["up"]}), "series"),
    "VideoRectangle": (result("videorectangle", {"framesCount": 3, "sequence": []}), "regions of a video"),
    "ReactCode": (result("reactcode", {"reactcode": {"a": 1}}), "what a program of yours returns"),
    "a new control": (result("hologram", {"hologram": 1}), "of the type 'hologram', which is not known"),
    "Choices of a region": (result("choices", region(choices=["glad"])), "a Choices of one region"),
    "Rating of a region": (result("rating", region(rating=3)), "a Rating of one region"),
    "Taxonomy of a region": (result("taxonomy", region(taxonomy=[["a"]])), "a Taxonomy of one region"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_controls_are_refused_by_what_they_are_unless_ignored(tmp_path, capsys, case):
    one, why = REFUSED[case]
    path = export(tmp_path, [SPAN, one])
    said = refused(capsys, "data", "import", path, tmp_path / "made")
    assert "item 1: 'x' is " in said and why in said and "leave it out with --ignore x" in said
    split, account = read_utterances(path, Choices(ignore=frozenset({"x"})))
    assert split.slots[0] == ["O", "O", "B-city", "O"] and account.unused["x"] == "--ignore"


def test_every_control_of_the_documentation_is_declared():
    """The control tags of labelstud.io/tags, copied by hand in 2026-11."""
    documented = """Bitmask BitmaskLabels Brush BrushLabels Chat Choices Cube CubeLabels DateTime Ellipse EllipseLabels
    HyperTextLabels KeyPoint KeyPointLabels Labels List MagicWand Number Pairwise ParagraphLabels Polygon PolygonLabels
    Ranker Rating ReactCode Rectangle RectangleLabels Relation Relations Taxonomy TextArea TimelineLabels
    TimeSeriesLabels Vector VectorLabels VideoRectangle VideoVector VideoVectorLabels"""
    assert {tag for control in CONTROLS for tag in control.tags} == set(documented.split())
    assert len({control.type for control in CONTROLS}) == len(CONTROLS)


def test_each_paragraph_of_a_dialogue_is_an_utterance(tmp_path):
    first, second = in_paragraph("0", "0", 7, 11, "lima"), in_paragraph(1, 1, 0, 4, "lima")
    split, account = read_utterances(export(tmp_path, [first, second], DIALOGUE))
    assert split.words[:2] == ["fly to lima now".split(), "lima it is".split()]
    assert split.slots[:2] == [["O", "O", "B-city", "O"], ["B-city", "O", "O"]]
    assert set(account.unused) == {"id", "annotations.id", "author"} and account.utterances == 6
    few = export(tmp_path, [], DIALOGUE).read_text()
    some = json.loads(export(tmp_path, [first], DIALOGUE).read_text())[:1] + json.loads(few)[:1]
    (tmp_path / "b.json").write_text(json.dumps(some))  # of a dialogue without spans, too
    slots = read_utterances(tmp_path / "b.json")[0].slots
    assert slots == [["O", "O", "B-city", "O"], 3 * ["O"], 4 * ["O"], 3 * ["O"]]


BAD = {
    "over paragraphs": (in_paragraph("0", "1", 7, 2, None), DIALOGUE, "goes over several paragraphs"),
    "no such paragraph": (in_paragraph("2", "2", 0, 4, "lima"), DIALOGUE, "is in paragraph '2', and there are 2"),
    "another text": (in_paragraph("1", "1", 5, 7, "lima"), DIALOGUE, "has the text 'lima', and not what the offsets"),
    "two dialogues": (
        in_paragraph("0", "0", 7, 11, "lima"),
        DIALOGUE | {"b": DIALOGUE["turns"]},
        "2 lists of paragraphs",
    ),
    "a name twice": (in_paragraph("0", "0", 7, 11, "lima"), DIALOGUE | {"author": "she"}, "'author' is in data and"),
    "no text of HTML": (
        result("hypertextlabels", GLOBAL | {"hypertextlabels": ["city"]}),
        TEXT,
        "a span of HyperText without its text",
    ),
    "offsets of a node": (result("hypertextlabels", NODE | {"hypertextlabels": ["city"]}), TEXT, "globalOffsets"),
    "a slash in a level": (result("taxonomy", {"taxonomy": [["and/or"]]}), TEXT, "'and/or' has a /"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_placed_is_refused(tmp_path, capsys, case):
    one, data, said = BAD[case]
    assert said in refused(capsys, "data", "import", export(tmp_path, [one], data), tmp_path / "made")


def test_a_choice_of_a_dialogue_is_no_intent_of_its_paragraphs(tmp_path, capsys):
    both = [in_paragraph("0", "0", 7, 11, "lima"), result("choices", {"choices": ["go"]}, "topic")]
    said = refused(capsys, "data", "import", export(tmp_path, both, DIALOGUE), tmp_path / "made")
    assert "'topic' is of the whole dialogue, which has 2 utterances; leave it out with --ignore topic" in said
    alone = {"turns": DIALOGUE["turns"][:1]}
    assert read_utterances(export(tmp_path, both, alone))[0].intents == 3 * ["go"]


def test_json_min_has_the_same_meanings(tmp_path, capsys):
    row = TEXT | {"id": 1, "annotation_id": 2, "annotator": 3, "lead_time": 1.5, "created_at": "", "updated_at": ""}
    paths = row | {"topic": [["go", "by air"]], "label": [region(labels=["city"])]}
    assert read(tmp_path, capsys, "a.json", json.dumps(3 * [paths])) == {CITY: "go/by_air"}
    html = row | {"label": [NODE | GLOBAL | {"hypertextlabels": ["city"]}]}
    (tmp_path / "b.json").write_text(json.dumps([html]))
    assert read_utterances(tmp_path / "b.json")[0].slots == [["O", "O", "B-city", "O"]]
    (tmp_path / "c.json").write_text(json.dumps([row | {"label": [in_paragraph("0", "0", 7, 11, "lima")["value"]]}]))
    assert "export JSON" in refused(capsys, "data", "import", tmp_path / "c.json", tmp_path / "other")


def test_every_key_of_a_task_and_of_its_annotation_is_accounted_for(tmp_path, capsys):
    task = {"id": 1, "project": 3, "predictions": [], "data": TEXT | {"by": "me"}}
    task["annotations"] = [{"id": 2, "lead_time": 1.5, "ground_truth": False, "result": [SPAN]}]
    (tmp_path / "a.json").write_text(json.dumps([task]))
    _, account = read_utterances(tmp_path / "a.json")
    of_annotation = {"annotations.id", "annotations.lead_time", "annotations.ground_truth"}
    assert set(account.unused) == {"id", "project", "predictions", "by"} | of_annotation
    (tmp_path / "b.json").write_text(json.dumps([task | {"spans2": [[0, 3, "verb"]]}]))
    assert "'spans2' and 'label' both have labels" in refused(
        capsys, "data", "import", tmp_path / "b.json", tmp_path / "made"
    )
