#!/bin/sh
# label-studio-sdk 2.1.2: its converter to CoNLL moves, drops and doubles annotations.
# Guess: of two spans that overlap the second is dropped; a region with two labels and a task with two annotators are
# refused.
# Seen: the second span keeps its last word alone, as a chunk that nobody annotated; the second label is dropped; each
# annotator's version becomes a sentence. Nothing is said.
# Who it hurts: who trains on the exported file.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile label-studio-sdk==2.1.2
"$folder/env/bin/python" - <<'PY'
import json
import tempfile
from pathlib import Path

from label_studio_sdk.converter import Converter

CONFIG = """<View><Labels name="label" toName="text"><Label value="city"/><Label value="date"/></Labels>
<Text name="text" value="$text"/></View>"""


def span(begin, end, text, *labels):
    value = {"start": begin, "end": end, "text": text, "labels": list(labels)}
    return {"from_name": "label", "to_name": "text", "type": "labels", "value": value}


def tags(text, *annotations):
    task = {"id": 1, "data": {"text": text}}
    task["annotations"] = [{"id": number, "result": result} for number, result in enumerate(annotations)]
    folder = tempfile.mkdtemp()
    source = Path(folder, "tasks.json")
    source.write_text(json.dumps([task]))
    Converter(CONFIG, None, download_resources=False).convert_to_conll2003(str(source), folder, is_dir=False)
    lines = Path(folder, "result.conll").read_text().splitlines()[1:]
    return [line.split()[-1] for line in lines if line]


found = {
    "overlap": tags(
        "to new york city today", [span(3, 16, "new york city", "city"), span(7, 22, "york city today", "date")]
    ),
    "two labels": tags("boston", [span(0, 6, "boston", "city", "date")]),
    "two annotators": tags("boston", [span(0, 6, "boston", "city")], []),
}
print(found)
assert found["overlap"] == ["O", "B-city", "I-city", "I-city", "B-date"]
assert found["two labels"] == ["B-city"] and found["two annotators"] == ["B-city", "O"]
PY
