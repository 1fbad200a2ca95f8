"""The output of `--json` follows docs/commands.schema.json; completion of the command line in a shell."""

import json
import subprocess
import sys

import jsonschema
import pytest
from command_schemas import EXAMPLES, FILE, output_of, prepare, schema_of

SCHEMAS = json.loads(FILE.read_text())["commands"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the first example, a training, has run."""
    folder = tmp_path_factory.mktemp("examples")
    prepare(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("BTTLAB_RUNS", str(folder))
        jsonschema.validate(output_of(EXAMPLES["train"]), SCHEMAS["train"])
        yield folder


@pytest.mark.long
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "train"])
def test_output(name):
    jsonschema.validate(output_of(EXAMPLES[name]), SCHEMAS[name])


def test_a_schema_describes_its_example_and_refuses_others():
    value = {"name": "a", "count": 2, "rows": [{"x": 1.5}, {"x": 2}], "none": None, "by key": {"2-ENC": 1}}
    schema = {**schema_of({k: v for k, v in value.items() if " " not in k})}
    good = {"name": "b", "count": 0.5, "rows": [], "none": "any"}
    jsonschema.validate(good, schema)
    for wrong in ({"count": "2"}, {"more": 1}, {"rows": [{"y": 1}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | wrong, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "b"}, schema)
    assert schema_of(value) == {"type": "object"}


def test_completion_in_bash(tmp_path):
    script = tmp_path / "bttlab"
    with script.open("w") as file:
        command = [sys.executable, "-m", "shtab", "--shell=bash", "bttlab.cli.build_parser"]
        subprocess.run(command, stdout=file, check=True)
    for words, expected in (("bttlab do", "doctor"), ("bttlab train --resu", "--resume")):
        number = len(words.split()) - 1
        lines = f"source {script}; COMP_WORDS=({words}); COMP_CWORD={number}; _shtab_bttlab; echo ${{COMPREPLY[@]}}"
        assert subprocess.run(["bash", "-c", lines], capture_output=True, text=True).stdout.split() == [expected]
