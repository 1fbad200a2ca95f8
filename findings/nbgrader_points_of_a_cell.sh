#!/bin/sh
# nbgrader 0.9.6: what counts as points of an autograded cell.
# Guess: a cell without an error has its points, and a last expression counts only if it is a number.
# Seen: any text on stderr is 0 points, also of a right answer. NaN, a negative number, False, an array, and NumPy 2's
# np.float64(0.0) are full points.
# Who it hurts: students whose library warns; lecturers whose check ends in an expression.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile nbgrader==0.9.6
"$folder/env/bin/python" - <<'PY'
import logging

from nbformat.v4 import new_code_cell, new_output
from nbgrader.utils import compute_checksum, determine_grade


def points(*outputs):
    about = {"grade": True, "solution": False, "locked": True, "points": 4, "grade_id": "check", "task": False}
    cell = new_code_cell("check()", metadata={"nbgrader": about | {"schema_version": 3, "cell_type": "code"}})
    cell.outputs = list(outputs)
    return determine_grade(cell, logging.getLogger())[0]


def value(text):
    return new_output("execute_result", {"text/plain": text})


logging.disable(logging.CRITICAL)
warning = new_output("stream", name="stderr", text="UserWarning: slow\n")
found = {"no output": points(), "a warning on stderr": points(warning)}
found |= {text: points(value(text)) for text in ("0", "0.5", "nan", "-1", "False", "array([0.])", "np.float64(0.0)")}
print(found)
assert list(found.values()) == [4, 0, 0, 0.5, 4, 4, 4, 4, 4]
PY
