"""Write docs/commands.schema.json: a JSON Schema of the output of `--json` for each command.

    python tools/command_schemas.py [COMMAND…]

The schemas describe the results of `EXAMPLES`; the test of the same name runs them and compares.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "commands.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
MOST_LEVELS = 2  # levels of nested objects whose keys are listed
RUN = ["--run", "run"]
# Each example runs in the same folder, after those above it.
EXAMPLES = {
    "train": ["train", "--samples", "8", "--device", "emulated", "--out", "run"],
    "doctor": ["doctor"],
    "notebooks": ["notebooks", "mine"],
    "course": ["course", "course"],
    "data import": ["data", "import", "asked.csv", "asked", "--label", "team"],
    "size": ["size", "--encoders", "2", "4"],
    "eval": ["eval", *RUN, "--split", "dev"],
    "predict": ["predict", "show me flights to boston", *RUN],
    "baseline": ["baseline", "--gpu", "A100-40GB", "--modelled"],
    "estimate": ["estimate", "--encoders", "2"],
    "program": ["program", "--encoders", "1"],
    "bringup": ["bringup", "--device", "emulated", "--samples", "2", "--record", "bringup.json"],
    "runs list": ["runs", "list"],
    "runs show": ["runs", "show", "run"],
    "runs compare": ["runs", "compare"],
    "runs export": ["runs", "export", "--csv", "runs.csv"],
    "methods list": ["methods", "list"],
    "cost": ["cost", "--model", "mixtral-8x7b", "--tokens", "10M"],
    "methods run": ["methods", "run", "dense", "--budget", "8"],
    "sweep": ["sweep", "sweep.yaml", "--out", "sweep", "--workers", "1"],
}

# Commands that accept a user's module; and keys that the results for modules lack, with the keys that replace them.
OF_MODULES = ("train", "eval", "predict", "size", "program", "baseline")
INSTEAD = {
    "encoders": {"module": {"type": "string"}},
    "intent_accuracy": {},
    "slot_f1": {"perplexity": {"type": "number"}},
    "frame_accuracy": {},
    "intent": {},
    "slots": {"next": {"type": ["string", "null"]}},
}


def prepare(folder: Path) -> None:
    """Write the files that the examples read."""
    (folder / "asked.csv").write_text("text,team\n" + "where is my parcel,delivery\nsend an invoice,billing\n" * 3)
    (folder / "sweep.yaml").write_text("{kind: estimate, vary: {encoders: [1, 2]}}")


def output_of(arguments: list[str]) -> dict[str, Any]:
    """Run a command line with --json in this process and return its output; raise RuntimeError if it fails."""
    from bttlab.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main([*arguments, "--json"])
    if code:
        raise RuntimeError(f"bttlab {' '.join(arguments)} ended with exit code {code}")
    return json.loads(printed.getvalue())


def schema_of(value: Any, levels: int = MOST_LEVELS) -> dict[str, Any]:
    """Return a schema for values like this one. null allows any value; keys that are not names allow any keys."""
    if isinstance(value, Mapping):
        if not levels or not value or not all(key.isidentifier() and key.islower() for key in value):
            return {"type": "object"}
        properties = {key: schema_of(each, levels - 1) for key, each in value.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": sorted(properties),
            "additionalProperties": False,
        }
    if isinstance(value, list):
        items = [schema_of(each, levels) for each in value]
        return (
            {"type": "array", "items": items[0]} if items and items.count(items[0]) == len(items) else {"type": "array"}
        )
    for kind, name in ((bool, "boolean"), (int | float, "number"), (str, "string")):
        if isinstance(value, kind):
            return {"type": name}
    return {}


def of_modules(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also allows the results for modules."""
    made = dict(schema)
    if "items" in schema:
        made["items"] = of_modules(schema["items"])
    if "properties" in schema:
        made["properties"] = {key: of_modules(each) for key, each in schema["properties"].items()}
        for key in filter(schema["properties"].__contains__, INSTEAD):
            made["properties"] |= INSTEAD[key]
        made["required"] = [key for key in schema["required"] if key not in INSTEAD]
    return made


def main(names: list[str]) -> None:
    """Run the examples and write their schemas."""
    schemas = json.loads(FILE.read_text())["commands"] if FILE.exists() and names else {}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        os.environ["BTTLAB_RUNS"] = scratch
        prepare(Path(scratch))
        for name, arguments in EXAMPLES.items():
            if not names or name in names or name == "train":
                schema = schema_of(output_of(arguments))
                schemas[name] = of_modules(schema) if name in OF_MODULES else schema
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in sorted(schemas.items()))
    FILE.write_text(f'{{"$schema": "{DIALECT}", "commands": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
