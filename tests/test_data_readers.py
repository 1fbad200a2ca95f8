"""Declared readers: each format is read for what it is, or refused with the reason."""

import base64
import json
import struct
import zlib

import pytest

from bttlab.cli import main
from bttlab.data import read_corpus
from bttlab.data.importing import read_utterances
from command_line import refused, run_json
from test_data_import import read, rows_of

CITY = {"fly/O to/O lima/B-city now/O": "flight"}
TAGGED = {"fly/O to/O lima/B-city now/O": "none"}
TEXT = {"text": "fly to lima now"}
ROW = TEXT | {"intent": "flight"}


def lines(*rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows)


SPANS = {  # each form of a span, with offsets counted by hand
    "list": [7, 11, "city"],
    "doccano": {"id": 3, "start_offset": 7, "end_offset": 11, "label": "city"},
    "studio": {"start": 7, "end": 11, "text": "lima", "labels": ["city"]},
    "prodigy": {"start": 7, "end": 11, "label": "city", "token_start": 2, "token_end": 2},
    "rasa": {"start": 7, "end": 11, "value": "lima", "entity": "city"},
    "rasa, normalized": {"start": 7, "end": 11, "value": "LIM", "entity": "city", "extractor": "duckling"},
    "wit": {"start": 7, "end": 11, "body": "lima", "entity": "city", "entities": []},
    "LUIS": {"startPos": 7, "endPos": 10, "entity": "city", "children": []},
    "LUIS batch": {"startCharIndex": 7, "endCharIndex": 10, "entityName": "city"},
    "CLU": {"offset": 7, "length": 4, "category": "city"},
}


@pytest.mark.parametrize("form", SPANS)
@pytest.mark.parametrize("column", ["entities", "spans", "labels", "annotations"])
def test_each_form_of_a_span_beside_an_intent(tmp_path, capsys, form, column):
    assert read(tmp_path, capsys, "a.jsonl", 3 * lines(ROW | {column: [SPANS[form]]})) == CITY


BAD_SPANS = {
    "four parts": ([7, 11, "city", "lima"], "has 4 parts"),
    "two labels": ({"start": 7, "end": 11, "labels": ["city", "x"]}, "has 2 labels (city, x); --overlaps first"),
    "no label": ({"start": 7, "end": 11, "labels": []}, "almost "),
    "type": ({"start": 7, "end": 11, "type": "city"}, "missing; type left over"),
    "begin": ({"begin": 7, "end": 11, "label": "city"}, "(start missing; begin left over)"),
    "role": (
        {"start": 7, "end": 11, "entity": "city", "role": "to"},
        "(role left over); leave it out with --ignore entities.role",
    ),
    "object": ({"city": "lima"}, "missing; city left over"),
    "text": ("lima", "'lima' is not a span of 'entities'"),
    "text as offsets": (["7", "11", "city"], "a span's start is '7'"),
    "fraction": ([7.0, 11, "city"], "a span's start is 7.0"),
    "number as label": ([7, 11, 3], "is 3: it must be a name"),
    "other text": ({"start": 7, "end": 11, "text": "now", "labels": ["city"]}, "has the text 'now'"),
    "other value": ({"start": 7, "end": 11, "value": "now", "entity": "city"}, "has the value 'now'"),
    "within a word": ([7, 9, "city"], "cuts the word 'lima'; correct it, or choose --tokenizer characters, which"),
}


@pytest.mark.parametrize("fault", BAD_SPANS)
def test_a_span_that_no_form_fits_is_refused_beside_an_intent_too(tmp_path, capsys, fault):
    span, said = BAD_SPANS[fault]
    (tmp_path / "a.jsonl").write_text(
        3 * lines(ROW | {"entities": [SPANS["list"], span] if fault == "text" else [span]})
    )
    assert said in refused(capsys, "data", "import", tmp_path / "a.jsonl", tmp_path / "made")


READ = {
    "upper case of a suffix": ("A.CSV", "text,label\n" + 3 * "fly,flight\n", "", {"fly/O": "flight"}),
    "spaces in a header": ("a.csv", "text, label\n" + 3 * "fly,flight\n", "", {"fly/O": "flight"}),
    "a role ignored": (
        "a.jsonl",
        3 * lines(ROW | {"entities": [SPANS["rasa"] | {"role": "to"}]}),
        "--ignore entities.role",
        CITY,
    ),
    "one of two columns": (
        "a.jsonl",
        3 * lines(ROW | {"entities": [[7, 11, "city"]], "spans": [[0, 3, "verb"]]}),
        "--ignore spans",
        CITY,
    ),
    "Rasa JSON": (
        "a.json",
        json.dumps(
            {
                "rasa_nlu_data": {
                    "common_examples": 3 * [ROW | {"entities": [SPANS["rasa"]]}] + [{"text": "hi", "intent": "greet"}],
                    "lookup_tables": [{"name": "city", "elements": ["lima"]}],
                }
            }
        ),
        "",
        CITY | {"hi/O": "greet"},
    ),
    "CLU": (
        "a.json",
        json.dumps(
            {
                "projectFileVersion": "2022-05-01",
                "stringIndexType": "Utf16CodeUnit",
                "assets": {
                    "projectKind": "Conversation",
                    "intents": [{"category": "flight"}],
                    "utterances": 3
                    * [
                        {
                            "text": "🙂 lima",
                            "intent": "flight",
                            "language": "en",
                            "dataset": "Train",
                            "entities": [{"offset": 3, "length": 4, "category": "city"}],
                        }
                    ],
                },
            }
        ),
        "",
        {"🙂/O lima/B-city": "flight"},
    ),
    "LUIS": (
        "a.json",
        json.dumps(
            {
                "luis_schema_version": "7.0.0",
                "intents": [{"name": "flight"}],
                "culture": "en-us",
                "utterances": 3 * [ROW | {"entities": [SPANS["LUIS"]]}],
            }
        ),
        "",
        CITY,
    ),
    "Rasa YAML": (
        "a.yml",
        'version: "3.1"\nnlu:\n- intent: flight\n  examples: |\n'
        + 3 * '    - fly to [lima]{"entity": "city"} now\n'
        + "- lookup: city\n  examples: |\n    - quito\n- intent: x\n  examples: |\n    - from [new york](city)\n",
        "",
        CITY | {"from/O new/B-city york/I-city": "x"},
    ),
    "Rasa YAML with values of synonyms": (
        "a.yml",
        "nlu:\n- intent: flight\n  examples: |\n    - fly to [lima](city:LIM of Peru) now\n    - hi\n    - hi\n",
        "",
        CITY | {"hi/O": "flight"},
    ),
    "MASSIVE": (
        "a.jsonl",
        3
        * lines(
            {"id": "0", "partition": "train", "scenario": "fly", "intent": "flight"}
            | {"utt": "fly to lima now", "annot_utt": "fly to [city : lima] now", "judgments": [{"worker_id": "1"}]}
        ),
        "",
        CITY,
    ),
    "spaCy's pairs": ("a.json", json.dumps(3 * [["fly to lima now", {"entities": [[7, 11, "city"]]}]]), "", TAGGED),
    "spaCy's categories": (
        "a.json",
        json.dumps(3 * [["fly to lima now", {"entities": [[7, 11, "city"]], "cats": {"flight": 1.0, "fare": 0.0}}]]),
        "",
        CITY,
    ),
    "spaCy JSON": (
        "a.json",
        json.dumps(
            3
            * [
                {
                    "id": 0,
                    "paragraphs": [
                        {
                            "sentences": [
                                {
                                    "tokens": [
                                        {"id": n, "orth": word, "ner": tag}
                                        for n, (word, tag) in enumerate(
                                            [("fly", "O"), ("to", "O"), ("lima", "U-city"), ("now", "O")]
                                        )
                                    ]
                                }
                            ]
                        }
                    ],
                }
            ]
        ),
        "",
        TAGGED,
    ),
    "Prodigy's choices": (
        "a.jsonl",
        3
        * lines(
            TEXT
            | {"spans": [SPANS["prodigy"]], "options": [{"id": "flight", "text": "Flight"}], "accept": ["flight"]}
            | {"answer": "accept", "_input_hash": 1, "tokens": [{"text": "fly", "start": 0, "end": 3, "id": 0}]}
        ),
        "",
        CITY,
    ),
    "rows of a dataset server": (
        "a.json",
        json.dumps(
            {
                "features": [
                    {"name": "tokens", "type": {"feature": {"dtype": "string"}, "_type": "Sequence"}},
                    {
                        "name": "ner_tags",
                        "type": {"feature": {"names": ["O", "B-city"], "_type": "ClassLabel"}, "_type": "Sequence"},
                    },
                ],
                "rows": 3
                * [
                    {
                        "row_idx": 0,
                        "row": {"tokens": ["fly", "to", "lima", "now"], "ner_tags": [0, 0, 1, 0]},
                        "truncated_cells": [],
                    }
                ],
                "num_rows_total": 3,
            }
        ),
        "",
        TAGGED,
    ),
    "a token in each row": (
        "a.csv",
        "Sentence #,Word,POS,Tag\n" + "".join(f"s{n},fly,V,O\n,to,P,O\n,lima,N,B-city\n,now,A,O\n" for n in range(3)),
        "",
        TAGGED,
    ),
    "CoNLL-2003": (
        "a.conll",
        3 * "fly VB B-VP O\nto TO B-PP O\nlima NNP B-NP B-city\nnow RB B-ADVP O\n\n",
        "",
        TAGGED,
    ),
    "CoNLL-U Plus": (
        "a.conllup",
        "# global.columns = ID FORM NE\n"
        + 3 * "# text = x\n1\tfly\tO\n2\tto\tO\n3-4\tlimanow\t_\n3\tlima\tB-city\n4\tnow\tO\n\n",
        "",
        TAGGED,
    ),
    "CoNLL-U": (
        "a.conllu",
        3
        * "".join(
            f"{n}\t{word}\t_\tX\t_\t_\t0\troot\t_\t{misc}\n"
            for n, (word, misc) in enumerate(
                [("fly", "_"), ("to", "_"), ("lima", "SpaceAfter=No|NER=B-city"), ("now", "_")], 1
            )
        ).__add__("\n"),
        "",
        TAGGED,
    ),
    "CoNLL-U with ner= in MISC": (
        "a.conllu",
        3
        * (
            "1\tfly\t_\t_\t_\t_\t0\troot\t_\tner=O\n2-3\ttolima\t_\t_\t_\t_\t_\t_\t_\tner=O\n"
            "2\tto\t_\t_\t_\t_\t1\tx\t_\t_\n3\tlima\t_\t_\t_\t_\t1\tx\t_\tstart_char=7|ner=B-city\n"
            "4\tnow\t_\t_\t_\t_\t1\tx\t_\tner=O\n\n"
        ),
        "--tags MISC",
        TAGGED,
    ),
    "gold of conlleval": (
        "a.conll",
        3 * "fly O B-x\nto O O\nlima B-city O\nnow O O\n\n",
        "--tags 2 --ignore 3",
        TAGGED,
    ),
    "outer tags of GermEval": (
        "a.conll",
        3 * "# http://x\n1 fly O O\n2 to O O\n3 lima B-city B-x\n4 now O O\n\n",
        "--tags 3 --ignore 4",
        TAGGED,
    ),
    "an intent in the last column": (
        "a.conll",
        3 * "fly O flight\nto O flight\nlima B-city flight\nnow O flight\n\n",
        "--tags 2 --label 3",
        CITY,
    ),
    "a tag before the word": ("a.conll", 3 * "O fly\nO to\nB-city lima\nO now\n\n", "--tags 1 --text 2", TAGGED),
    "WebAnno TSV": (
        "a.tsv",
        "#FORMAT=WebAnno TSV 3.3\n#T_SP=webanno.custom.Named|value\n\n\n"
        + "".join(
            f"#Text=🙂 new york\n{n}-1\t{at}-{at + 2}\t🙂\t_\t\n{n}-2\t{at + 3}-{at + 6}\tnew\tcity[{n}]\t\n"
            f"{n}-3\t{at + 7}-{at + 11}\tyork\tcity[{n}]\t\n\n"
            for n, at in ((1, 0), (2, 12), (3, 24))
        ),
        "",
        {"🙂/O new/B-city york/I-city": "none"},
    ),
    "WebAnno TSV with an empty feature": (
        "a.tsv",
        "#FORMAT=WebAnno TSV 3.3\n#T_SP=x.NamedEntity|identifier|value\n\n\n"
        + "".join(
            f"#Text=now new york\n{n}-1\t{at}-{at + 3}\tnow\t*\tday\t\n"
            f"{n}-2\t{at + 4}-{at + 7}\tnew\t*[{n}]\tcity[{n}]\t\n"
            f"{n}-3\t{at + 8}-{at + 12}\tyork\t*[{n}]\tcity[{n}]\t\n\n"
            for n, at in ((1, 0), (2, 13), (3, 26))
        ),
        "",
        {"now/B-day new/B-city york/I-city": "none"},
    ),
    "tags in brackets": ("a.csv", "text,label\n" + 3 * "fly to [lima](city) now,flight\n", "--tags text", CITY),
    "names that look like a scheme": (
        "a.bio",
        3 * "take O\nu8 U-Bahn\ns1 S-Bahn\nmail E-Mail\n\n",
        "",
        {"take/O u8/B-U-Bahn s1/B-S-Bahn mail/B-E-Mail": "none"},
    ),
    "offsets in UTF-16": (
        "a.jsonl",
        3 * lines({"text": "🙂🙂 2 4 seats", "label": [[5, 6, "number"]]}),
        "--offsets utf-16",
        {"🙂🙂/O 2/B-number 4/O seats/O": "none"},
    ),
    "the first label of a span": (
        "a.jsonl",
        3 * lines(ROW | {"entities": [{"start": 7, "end": 11, "labels": ["city", "x"]}]}),
        "--overlaps first",
        CITY,
    ),
}


@pytest.mark.parametrize("case", READ)
def test_a_file_is_read_for_what_it_is(tmp_path, capsys, case):
    name, content, options, expected = READ[case]
    assert read(tmp_path, capsys, name, content, options.split()) == expected


OVERLAPPING = {"text": "bank of new york city", "label": [[8, 21, "area"], [0, 16, "bank"], [8, 16, "city"]]}
NESTED = {"text": "bank of new york city", "label": [[8, 16, "city"], [0, 21, "bank"]]}


@pytest.mark.parametrize(
    ("row", "rule", "tags"),
    [
        (OVERLAPPING, "first", "O O B-area I-area I-area"),
        (OVERLAPPING, "longest", "B-bank I-bank I-bank I-bank O"),
        (NESTED, "first", "O O B-city I-city O"),
        (NESTED, "outer", "B-bank I-bank I-bank I-bank I-bank"),
    ],
)
def test_which_of_several_spans_is_kept(tmp_path, capsys, row, rule, tags):
    (tmp_path / "a.jsonl").write_text(3 * lines(row))
    found = run_json(capsys, "data", "import", tmp_path / "a.jsonl", tmp_path / "made", "--overlaps", rule)
    assert read_corpus(tmp_path / "made").train.slots == [tags.split()]
    left = len(row["label"]) - len({tag[2:] for tag in tags.split() if tag != "O"})
    assert found["accounts"][0]["left_out"] == {"spans that overlap another": 3 * left}


def test_a_collection_of_brat_in_subfolders(tmp_path, capsys):
    for name in ("one", "two"):
        folder = tmp_path / "brat" / name
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text("to lima\nhi\n")
        (folder / "a.ann").write_text("T1\tcity 3 7\tlima\n")
    (account,) = run_json(capsys, "data", "import", tmp_path / "brat", "--dry-run")["accounts"]
    assert account["slots"] == {"city": 2} and account["utterances"] == 4


@pytest.mark.parametrize(
    ("rule", "tags"), [("outer", "B-x I-x I-x I-x"), ("longest", "O O B-x I-x"), ("first", "B-x O O O")]
)
def test_fragments_of_brat(tmp_path, capsys, rule, tags):
    folder = tmp_path / "brat"
    folder.mkdir()
    (folder / "a.txt").write_text(3 * "a b c d\n")
    places = "".join(f"T{n}\tx {8 * n} {8 * n + 1};{8 * n + 4} {8 * n + 7}\ta c d\n" for n in range(3))
    (folder / "a.ann").write_text(places + "R1\tr Arg1:T1 Arg2:T2\n")
    assert "a span of 2 parts" in refused(capsys, "data", "import", folder, tmp_path / "made")
    found = run_json(capsys, "data", "import", folder, tmp_path / "made", "--overlaps", rule)
    assert read_corpus(tmp_path / "made").train.slots == [tags.split()]
    assert found["accounts"][0]["skipped"] == {"relations": 1}


STACKED = 3 * "bank B-org|O\nlima I-org|B-city\n\n"
STUDIO = {"data": {"text": "fly"}, "annotations": [{"result": []}]}
TASK_OF_STARS = {"from_name": "stars", "type": "rating", "value": {"rating": 4}}
REFUSED = {
    "two columns of spans": (
        "a.jsonl",
        lines(ROW | {"entities": [[0, 3, "x"]], "spans": [[4, 6, "y"]]}),
        "both have labels",
    ),
    "an unknown column of spans": ("a.jsonl", lines(ROW | {"slot_spans": [[0, 3, "x"]]}), "--ignore slot_spans"),
    "an unknown column of tags": ("a.csv", "text,intent,bio\nfly now,x,O B-t\n", "--ignore bio"),
    "labels as text": ("a.csv", "text,intent,x\nfly,x,\"[{'start': 0}]\"\n", "--ignore x"),
    "fragments": ("a.jsonl", lines(ROW | {"entities": [{"fragments": [[0, 1]], "label": "x"}]}), "almost "),
    "a row without spans": (
        "a.jsonl",
        lines(ROW | {"spans": [[0, 3, "x"]]}, ROW),
        "line 2: no 'spans', which other rows have",
    ),
    "two intents": ("a.csv", "text,label,intent\nfly,x,y\n", "name one with --label"),
    "a vector": ("a.jsonl", lines(TEXT | {"label": [1, 0, 1]}), "numbers, as of a vector"),
    "numbers of tags": ("a.jsonl", lines({"tokens": ["fly"], "ner_tags": [3]}), "3 is the number of a tag"),
    "half a character": ("a.jsonl", '{"text": "hi \\ud83d", "label": "a"}\n', "line 1: half a character"),
    "NaN": ("a.jsonl", '{"text": "hi", "label": NaN}\n', "Out of range float values are not JSON compliant"),
    "Chinese": ("a.jsonl", lines({"text": "明天去北京", "label": "x"}), "choose a --tokenizer: characters"),
    "Thai": ("a.csv", "text,label\nสวัสดี,x\n", "choose a --tokenizer: characters"),
    "offsets that may be both": (
        "a.jsonl",
        lines({"text": "🙂🙂 2 4 seats", "label": [[5, 6, "n"]]}),
        "--offsets characters or utf-16",
    ),
    "offsets in UTF-16": ("a.jsonl", lines({"text": "🙂 lima", "label": [[3, 7, "c"]]}), "take --offsets utf-16"),
    "outer tags": ("a.conll", 3 * "# x\n1 fly O O\n2 lima B-LOC O\n\n", "columns 3 and 4 both have tags"),
    "predictions": ("a.conll", 3 * "fly O O\nlima B-city O\n\n", "choose with --tags 2"),
    "an intent last": ("a.conll", 3 * "fly O go\nlima B-city go\n\n", "--tags 2 --label 3"),
    "a tag first": ("a.conll", 3 * "O fly\nB-city lima\n\n", "--tags 1 --text 2"),
    "a sentence in a line": ("a.bio", "fly to lima <=> flight\n" * 3, "a sentence in a line"),
    "sentences in lines": ("a.bio", "fly flight\n\nhome go\n\n", "every utterance has one word"),
    "no empty line": ("a.conll", "fly O\nlima B-city\ngo O\n", "no empty line"),
    "stacked tags": ("a.conll", STACKED, "'B-org|O' has several tags in one"),
    "O with a name": ("a.conll", 3 * "fly O-city\nnow O\n\n", "tag 'O-city' is of no known scheme"),
    "chunks of one word alone": ("a.conll", 3 * "fly S-Bahn\nnow O\n\n", "may be a name, or a chunk of one word"),
    "U without L": ("a.conll", 3 * "u8 U-Bahn\nlima B-city\nnow O\n\n", "tag 'U-Bahn' is of no scheme with B, U"),
    "an intent that nothing follows": (
        "a.conll",
        "a O\nb O\n\nc O\n\n# intent: x\n",
        "line 6: an intent without an utterance",
    ),
    "a token in each row": ("a.csv", "text,tags\nfly,O\nlima,B-c\n", "a token in each row"),
    "Label Studio's relations alone": ("a.json", json.dumps([STUDIO]), "neither a label nor tags"),
    "Label Studio's predictions": (
        "a.json",
        json.dumps([STUDIO | {"annotations": [], "predictions": [{}]}]),
        "submit them",
    ),
    "Label Studio's ratings": (
        "a.json",
        json.dumps([STUDIO | {"annotations": [{"result": [TASK_OF_STARS]}]}]),
        "neither a label nor tags; there are text, stars",
    ),
    "unknown JSON": ("a.json", '{"things": []}', "no list at rasa_nlu_data.common_examples"),
    "Rasa's groups": (
        "a.json",
        json.dumps({"rasa_nlu_data": {"common_examples": [ROW | {"x": "y"}]}}),
        "almost Rasa JSON; left over: 'x'",
    ),
    "Rasa's roles": (
        "a.yml",
        'nlu:\n- intent: x\n  examples: |\n    - [a]{"entity": "b", "role": "c"}\n',
        "the keys role",
    ),
    "a colon in a tag of a table": ("a.csv", "text\nto [lima](city:to)\n", "in '[lima](city:to)' a part of the label"),
    "Rasa's value without an entity": (
        "a.yml",
        "nlu:\n- intent: x\n  examples: |\n    - to [lima](city:)\n",
        "'[lima](city:)' lacks the entity or its value",
    ),
    "a tag of a range in CoNLL-U": (
        "a.conllu",
        "1-2\tim\t_\t_\t_\t_\t_\t_\t_\tner=B-place\n1\tin\t_\t_\t_\t_\t0\troot\t_\t_\n"
        "2\tdem\t_\t_\t_\t_\t1\tx\t_\t_\n\n1\tja\t_\t_\t_\t_\t0\troot\t_\tner=O\n\n",
        "line 1: 1-2 is no word, and has the tag B-place",
    ),
    "a tag of an empty node in CoNLL-U Plus": (
        "a.conllup",
        "# global.columns = ID FORM X:NE\n1\tin\tO\n1.1\tlima\tB-city\n2\tdem\tB-x\n\n1\tja\tO\n\n",
        "line 3: 1.1 is no word, and has the tag B-city",
    ),
    "a span of WebAnno over two sentences": (
        "a.tsv",
        "#FORMAT=WebAnno TSV 3.3\n#T_SP=webanno.custom.Named|value\n\n\n#Text=to new\n1-1\t0-2\tto\t_\t\n"
        "1-2\t3-6\tnew\tcity[1]\t\n\n#Text=york now\n2-1\t7-11\tyork\tcity[1]\t\n2-2\t12-15\tnow\t_\t\n",
        "line 10: the span [1] goes on from an earlier sentence",
    ),
    "MASSIVE of another text": (
        "a.jsonl",
        lines({"utt": "a b", "annot_utt": "a [x : c]", "intent": "y"}),
        "correct one",
    ),
    "a sentence in two places": (
        "a.csv",
        "Sentence #,Word,Tag\n1,a,O\n2,b,O\n1,c,O\n",
        "the sentence '1' is in two places",
    ),
    "a column that is not there": ("a.csv", "text,label\na,b\n", "no column 'z' to ignore"),
    "half of a corpus of Prodigy": ("a.jsonl", lines(ROW | {"answer": "accept"}, ROW), "line 2: it lacks 'answer'"),
    "a tag in brackets": (
        "a.csv",
        "text,label\nto [lima](city),x\n",
        "'[lima](city)' has a tag in brackets; --tags text",
    ),
    "a tag in MASSIVE's brackets": ("a.csv", "text,label\nto [city : lima],x\n", "--tags text reads it"),
    "predictions alone": ("a.jsonl", lines({"data": TEXT, "predictions": []}), "it lacks annotations"),
    "slots as an object": ("a.jsonl", lines(ROW | {"slots": {"city": "lima"}}), "or leave it out with --ignore slots"),
    "a column named slot": ("a.csv", "text,label,slot\nlima,x,city=lima\n", "--ignore slot"),
    "tags as labels": ("a.csv", "text,label\nfly,O\nlima,B-city\n", "the labels are tags of words"),
    "XML in the text": ("a.csv", "text,label\nto <city>lima</city>,x\n", "'<city>lima</city>' is markup in the text"),
    "ENAMEX": ("a.csv", "text,label\nto <ENAMEX TYPE='L'>lima</ENAMEX>,x\n", "is markup in the text"),
    "braces of Bot Framework": ("a.csv", "text,label\nto {@city=lima},x\n", "'{@city=lima}' is markup in the text"),
    "braces of Alexa": ("a.csv", "text,label\nto {lima|city},x\n", "'{lima|city}' is markup in the text"),
    "TOP's parses": (
        "a.tsv",
        "text\tintent\tsemantic_parse\nto lima\tGO\t[IN:GO to [SL:CITY lima ] ]\n",
        "--ignore semantic_parse",
    ),
    "offsets as text": ("a.tsv", "text\tintent\tparse\nto lima\tgo\t3:7:city,0:2:by\n", "--ignore parse"),
    "markup beside the text": (
        "a.jsonl",
        lines({"text": "to lima", "annotated": "to [city : lima]", "intent": "go"}),
        "--ignore annotated",
    ),
    "a name of several words": ("a.csv", "text,label,entities_text\nto lima,go,city=lima\n", "--ignore entities_text"),
    "a span in each row": (
        "a.csv",
        "text,begin offset,end offset,label\nto lima,3,7,city\n",
        "'begin offset' and 'end offset' may be the offsets of a span in each row",
    ),
    "names of columns": ("a.conll", "token\tlabel\n" + 3 * "to\tO\nlima\tcity\n\n", "line 1: the names of columns"),
    "a language before each word": (
        "a.conll",
        3 * "en:to\tO\nen:lima\tB-c\n\n",
        "every word begins with 'en:'; take it out",
    ),
    "brackets of CoNLL-2012": (
        "a.conll",
        3 * "a 0 0 to TO (TOP(S* - *\na 0 1 new NNP * - (GPE*\na 0 2 york NNP *)) - *)\n\n",
        "column 8 has tags in brackets, as CoNLL-2012",
    ),
    "labels joined by a comma": (
        "a.csv",
        'text,label\nfly,go\nwhy,ask\nfly why,"go, ask"\n',
        "line 4: the label 'go, ask' may be several",
    ),
    "marks": ("a.conll", 3 * "BOS O\nlima B-city\nEOS O\n\n", "every utterance begins with 'BOS'"),
    "another DocBin": ("a.spacy", "x", "is not a DocBin of spaCy"),
    "two columns without a name": (
        "a.csv",
        "text,label,,\nfly,x,O,\nfly to lima,x,O O B-city,\nhi,y,,note\n",
        "line 4: columns 3 and 4 have values and no name",
    ),
    "tags in one of two columns without a name": (
        "a.csv",
        "text,label,,\nfly to lima,x,O O B-city,\nhi,y,O,\n",
        "the column '' may have labels",
    ),
    "a blank before a quotation mark": (
        "a.csv",
        'text, label\nfly, x\n"hi, you", "x"\n',
        "line 3: a blank before the quotation mark of ' \"x\"'",
    ),
    "a document that begins within an utterance": (
        "a.conll",
        3 * "fly O\nlima B-city\n-DOCSTART- O\n\nhi O\nyou O\n\n",
        "line 3: -DOCSTART- within an utterance",
    ),
}


@pytest.mark.parametrize("second", ['"  ""Hi"" he said"', '"fly ""now"""', "  fly"])
def test_columns_that_a_spreadsheet_left_empty_and_blanks_of_a_field_are_taken(tmp_path, capsys, second):
    (tmp_path / "a.csv").write_text(f"text,label,,,\nfly to lima,x,,7,\n{second},y,,8,\nhi,y,,,\n")
    found = run_json(capsys, "data", "import", tmp_path / "a.csv", "--dry-run")["accounts"][0]
    assert found["utterances"] == 3 and found["unused"] == {"": "no meaning is known: --label names an intent"}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_refused_with_the_reason(tmp_path, capsys, case):
    name, content, said = REFUSED[case]
    (tmp_path / name).write_text(content)
    options = ["--ignore", "z"] if "ignore" in said and "z" in said else []
    options += ["--tags", "text"] if "a part of the label" in said else []
    assert said in refused(capsys, "data", "import", tmp_path / name, tmp_path / "made", *options)
    assert not (tmp_path / "made").exists()


def test_misc_of_conllu_without_tags_is_not_taken_for_tags(tmp_path, capsys):
    word = "1\tfly\t_\t_\t_\t_\t0\troot\t_\tSpaceAfter=No\n\n"
    (tmp_path / "a.conllu").write_text(3 * word)
    said = refused(capsys, "data", "import", tmp_path / "a.conllu", tmp_path / "made", "--tags", "MISC")
    assert "no tags in MISC, as NER=B-city" in said


def test_a_dry_run_accounts_for_every_column_and_writes_nothing(tmp_path, capsys):
    row = {"id": 7, "text": "Fly, to lima!", "entities": [[8, 12, "city"]], "intent": "go", "by": "me", "Comments": []}
    (tmp_path / "a.jsonl").write_text(lines(row, row) + "\n" + lines(row))
    account = run_json(capsys, "data", "import", tmp_path / "a.jsonl", "--dry-run")["accounts"][0]
    assert account["used"] == {"text": "text", "intent": "intent", "entities": "spans"}
    assert set(account["unused"]) == {"id", "by", "Comments"}
    assert {*account["used"], *account["unused"]} == set(row)
    assert account["skipped"] == {"empty": 1} and account["labels"] == {"go": 3} and account["slots"] == {"city": 3}
    assert sum(account["characters"].values()) == 3 * len(row["text"])
    assert main(["data", "import", str(tmp_path / "a.jsonl"), "--dry-run"]) == 0
    assert "not used: id (the tool's own); by (" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    assert "no DIR" in refused(capsys, "data", "import", tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    "row",
    [
        {"label_source": "x/y"},  # of no labels
        {"entities_url": "http://x"},
        {"start": 1.5, "end": 2.5},  # times of a recording
        {"translation": "a lima < quito > b"},
        {"score": "0.9"},
        {"slot_id": "17"},
    ],
)
def test_other_columns_are_named_as_unused(tmp_path, row):
    (tmp_path / "a.jsonl").write_text(3 * lines({"text": "a < b {c}", "intent": "go"} | row))
    _, account = read_utterances(tmp_path / "a.jsonl")
    assert set(account.unused) == set(row)


def test_what_is_not_used_is_named_where_it_is_imported(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("text,label,by\n" + "fly,go,me\nfly,stay,me\n" * 2)
    assert main(["data", "import", str(tmp_path / "a.csv"), str(tmp_path / "made")]) == 0
    said = capsys.readouterr().out
    assert "not used: by (" in said and "sentences with several intents: 1, such as 'fly' (go, stay)" in said


LISTS = [{"text": "fly", "label": ["fare", "flight"]}, {"text": "go", "label": ["flight", "fare"]}]


def test_several_intents_are_one_label_in_whatever_order(tmp_path, capsys):
    """The order is that of train; the text of a table and the choices of Label Studio have the same."""
    train, dev, test = tmp_path / "a.jsonl", tmp_path / "dev.csv", tmp_path / "test.json"
    train.write_text(lines(*LISTS, *LISTS, {"text": "stop", "label": "c#"}))
    dev.write_text("text,label\nfly,flight#fare\nstop,c#\n")
    choices = {"from_name": "i", "to_name": "text", "type": "choices", "value": {"choices": ["flight", "fare"]}}
    test.write_text(json.dumps([{"data": {"text": "fly now"}, "annotations": [{"result": [choices]}]}]))
    command = ["data", "import", str(train), str(tmp_path / "made"), "--dev", str(dev), "--test", str(test)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert said.count("several intents in another order, which become one label: flight#fare is fare#flight") == 3
    assert "labels of" not in said and "sentences with several intents" not in said
    corpus = read_corpus(tmp_path / "made")
    assert corpus.intent_labels == ["UNK", "c#", "fare#flight"]
    accounts = run_json(capsys, *command[:3], "--dev", dev, "--test", test, "--dry-run")["accounts"]
    assert [account["labels"] for account in accounts] == [
        {"fare#flight": 4, "c#": 1},
        {"c#": 1, "fare#flight": 1},
        {"fare#flight": 1},
    ]
    assert accounts[0]["reordered"] == {"flight#fare is fare#flight": 2}


@pytest.mark.parametrize("names", [["c#", "fare"], ["a#b", "c"], ["fare", ""]])
def test_intents_that_cannot_be_taken_apart_again_are_refused(tmp_path, capsys, names):
    (tmp_path / "a.jsonl").write_text(lines({"text": "fly", "label": names}))
    said = refused(capsys, "data", "import", tmp_path / "a.jsonl", "--dry-run")
    assert "cannot be taken apart again; leave # out of the names" in said


def test_two_spellings_of_a_label_are_noted(tmp_path, capsys):
    rows = [{"text": "lima rome", "label": "x", "spans": [span]} for span in ([0, 4, "the city"], [5, 9, "the_city"])]
    files = {
        "in one table": ("a.csv", "text,label\nfly,book flight\ngo,book_flight\nstop,x\n", "intent book_flight"),
        "spans": ("a.jsonl", lines(*rows), "slot the_city"),
    }
    for name, text, label in files.values():
        (tmp_path / name).write_text(text)
        assert main(["data", "import", str(tmp_path / name), "--dry-run"]) == 0
        spelled = label.partition(" ")[2]
        told = f"become one: {label} ('{spelled.replace('_', ' ')}', '{spelled}')"
        assert told in capsys.readouterr().out
    for name, label in (("train", "book flight"), ("dev", "book_flight")):
        (tmp_path / f"{name}.csv").write_text(f"text,label\nfly,{label}\ngo,x\nstop,x\n")
    command = ["data", "import", str(tmp_path / "train.csv"), "--dev", str(tmp_path / "dev.csv"), "--dry-run"]
    assert main(command) == 0
    assert capsys.readouterr().out.count("become one: intent book_flight ('book flight', 'book_flight')") == 1
    (tmp_path / "b.csv").write_text("text,label\nfly,book flight\ngo, book  flight\nstop,x\n")
    assert main(["data", "import", str(tmp_path / "b.csv"), "--dry-run"]) == 0
    assert "become one" not in capsys.readouterr().out


def test_a_foreign_name_in_a_text_with_spaces_is_noted(tmp_path, capsys):
    rows = [{"text": "play 官陵", "label": "x"}, *10 * [{"text": "play it", "label": "x"}]]
    (tmp_path / "a.jsonl").write_text(lines(*rows))
    assert main(["data", "import", str(tmp_path / "a.jsonl"), str(tmp_path / "made")]) == 0
    assert "words in a script without spaces, each one word: 1\n" in capsys.readouterr().out
    (tmp_path / "b.jsonl").write_text(lines(*rows[:5]))
    assert "choose a --tokenizer" in refused(capsys, "data", "import", tmp_path / "b.jsonl", tmp_path / "other")


DOCBIN = base64.b64decode(
    "eJzrXF6WWlScmZ+32EDPcGliSUlR8VxHZ08vbx9fP/+As4xHzjIePct4bFlJfnZqXvFRVg/j2WskXCU6RGE0AwHAhEOckYC+CT8V"
    "GDdZzjOB0eTaQwhs3DNlWv9npYxPL30/sfH9cCSknhlKa11aLNrL2HOaWHu2cPhcf1U7O1dn+tHavVoz1Aiph4UPqfbskctgFFkq"
    "/Q5GE1JPbrj5vRZadkOaKxhGk2sPoXTAoCP/3HNuoCycJtMeQmClcYRG7eL1OTCaXHsI+efO0h/eYtdiGgPcLNdvfdJNMP+Qm97o"
    "lX/4Jwgv4i7xvXeCPfhj+IWfFYTUk+ufoxYzOqd849aG0YTUk+ufc9fkdc5uip0Fo2llz7LigsTk1OIjvIxAAEw1jGB6eU5qXnpJ"
    "RvERHlao2WxAvLy4pCgzL734DoPQgiU+mbmJi/1Sy5cGlmaW5C+JzC/KXpKcWVK5OC2ncklaUX7u0ozUnJz8JTkgdXmp5Yvz8suX"
    "FoLULi3JSC1KXVSSv7BiSSVI24f5M5uWJCeWFE9uWpaWk5meUXLa/gPEeUvTi1JTS+CxA5eHCUDlYcoJ6V+alpOYXjy5cVNGYnF8"
    "aV420E158ZAQOES84GognRefXpRfWlA8+QjjBAgCACo0/Fg="
)


def test_spacys_file(tmp_path, capsys):
    """The file was written by spaCy 3.8.18: DocBin of three documents with `ents` and `cats`."""
    (tmp_path / "a.spacy").write_bytes(DOCBIN)
    run_json(capsys, "data", "import", tmp_path / "a.spacy", tmp_path / "made")
    assert rows_of(tmp_path / "made") == {
        "fly/O to/O new/B-city york/I-city now/O": "flight",
        "hello/O there/O": "greet",
        "from/O lima/B-city to/O quito/B-city 🙂/O x/O": "flight",
    }
    msgpack = pytest.importorskip("msgpack")
    content = msgpack.unpackb(zlib.decompress(DOCBIN), strict_map_key=False)
    content["lengths"] = struct.pack("<3i", 5, 2, 7)
    (tmp_path / "b.spacy").write_bytes(zlib.compress(msgpack.packb(content)))
    assert "do not agree" in refused(capsys, "data", "import", tmp_path / "b.spacy", tmp_path / "other")


def test_spans_of_spacys_groups_are_not_taken_for_none(tmp_path, capsys):
    """A file for spaCy's span categoriser alone: every word would be outside of all slots."""
    import msgpack

    content = msgpack.unpackb(zlib.decompress(DOCBIN), strict_map_key=False)
    width, ent_iob, ent_type = (len(content["attrs"]), *(content["attrs"].index(number) for number in (77, 78)))
    tokens = list(struct.unpack(f"<{len(content['tokens']) // 8}Q", content["tokens"]))
    tokens[ent_type::width] = [0] * len(tokens[ent_type::width])
    tokens[ent_iob::width] = [2] * len(tokens[ent_iob::width])
    content["tokens"] = struct.pack(f"<{len(tokens)}Q", *tokens)
    content["span_groups"][0] = msgpack.packb([b"a group"])
    (tmp_path / "cats.spacy").write_bytes(zlib.compress(msgpack.packb(content)))
    account = run_json(capsys, "data", "import", tmp_path / "cats.spacy", "--dry-run")["accounts"][0]
    assert account["unused"]["spans"] == "span groups; doc.ents has the spans that are read"
    content["cats"] = [{} for _ in content["cats"]]
    (tmp_path / "groups.spacy").write_bytes(zlib.compress(msgpack.packb(content)))
    said = refused(capsys, "data", "import", tmp_path / "groups.spacy", tmp_path / "made")
    assert "neither entities nor categories, and span groups" in said


def test_parquet_of_hugging_face_with_the_names_of_its_labels(tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    names = {"feature": {"names": ["O", "B-city", "I-city"], "_type": "ClassLabel"}, "_type": "List"}
    features = {"ner_tags": names, "intent": {"names": ["go", "stay"], "_type": "ClassLabel"}}
    rows = 3 * [{"id": "0", "tokens": ["to", "new", "york"], "ner_tags": [0, 1, 2], "intent": 0}]
    table = pyarrow.Table.from_pylist(rows)
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    parquet.write_table(table.replace_schema_metadata(about), tmp_path / "a.parquet")
    run_json(capsys, "data", "import", tmp_path / "a.parquet", tmp_path / "made")
    assert rows_of(tmp_path / "made") == {"to/O new/B-city york/I-city": "go"}
    parquet.write_table(table, tmp_path / "b.parquet")
    assert "0 is the number of a tag" in refused(capsys, "data", "import", tmp_path / "b.parquet", tmp_path / "other")
    (tmp_path / "c.parquet").write_text("x")
    assert "cannot be read as parquet" in refused(capsys, "data", "import", tmp_path / "c.parquet", tmp_path / "other")


def test_the_page_on_imports_is_made_from_the_readers():
    import import_table

    text = import_table.PAGE.read_text(encoding="utf-8")
    assert text == import_table.page(text), "run python tools/import_table.py"
