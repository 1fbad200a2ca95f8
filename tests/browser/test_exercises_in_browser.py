"""Right, nearly right and wrong answers, and what checks show then.

One exercise of each kind, number, tuple, text, function, is answered in a student's notebook with the keyboard. Answers
of every exercise, those of tests/test_exercises.py, are checked in one notebook.
"""

import re
from pathlib import Path

import pytest

from bttlab.teaching.exercises import EXERCISES
from bttlab.teaching.notebooks import release

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
CUT = """def cut(matrix, rank):
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    return {} * u[:, :rank], s[:rank, None] * v[:rank]"""
PEAK = """def peak(lives):
    return max(sum(size for size, made, freed in lives if made <= step {} freed) for _, step, _ in lives)"""
FLOW = 'my_refused_flow = """\n{}\n"""'
NOTEBOOKS = {
    "00_start_here": ["%matplotlib widget"],
    "01_tensor_compression": ["%matplotlib widget"],
    "02_contraction_flow": ["%matplotlib widget", "layer = TTLinear"],
    "04_memory_and_energy": ["from collections import Counter"],
}
# Of each exercise the sources, and what the check says of them.
ANSWERS = {
    "00.2": {
        "uniform_loss = None": "Not done yet: write your answer into the cell above",
        "uniform_loss = np.log(22) + np.log(122)": "Right. Cross-entropies add up",
        "uniform_loss = 7.9": "you gave 7.9, which is nearly right: give more digits. Hint: a uniform guess",
        "uniform_loss = 9.6": "you gave 9.6, which is too large. Hint: a uniform guess",
    },
    "01.1": {
        "my_parameters = 1296": "Right. Half the rank is about a quarter",
        "my_parameters = 1224": "you gave 1,224, which is too small. Hint: a core has",
        "my_parameters = '1296'": "you gave '1296', which is not a number. Hint: a core has",
    },
    "01.2": {
        "my_modes = (12, 4, 4, 4), (4, 4, 4, 12)": "Right. 3,744 parameters, not 4,896",
        "my_modes = (12, 64), (64, 12)": "your modes give 18,720 parameters; fewer than 4,896 are asked for. Hint:",
        "my_modes = (12, 8), (96, 8)": "your output modes (12, 8) multiply to 96, not 768. Hint: both tuples",
    },
    "01.4": {
        CUT.format(1): "Right. Fold the rest, cut again",
        CUT.format(2): "a `left` whose columns are not orthonormal. Hint: U, S, V = torch.linalg.svd",
        "def cut(matrix, rank):\n    return matrix": "Not yet:",
    },
    "02.4": {
        FLOW.format(
            "a = x G5\nb = a G6\nc = b G4\nd = c G3\ne = d G2\ny = e G1"
        ): "Right. The machine multiplies matrices",
        FLOW.format("a = x G6\nb = a G5\nc = b G4\nd = c G3\ne = d G2\ny = e G1"): "Hint: let x meet G5 first",
        FLOW.format("y = x G9"): "there is no G9 yet; there are x, G1, G2, G3, G4, G5, G6. Hint: let x meet G5 first",
    },
    "04.4": {
        PEAK.format("<"): "Right. Recompute an activation",
        PEAK.format("<="): "is 18; in step 1 12 bytes are alive. Hint: for each step add up",
        "def peak(lives):\n    return lives[9]": "Not yet: IndexError: list index out of range. Hint: for each step",
    },
}
# The tests of all answers, with objects as notebooks have them, show what checks say of some.
SHOW = """import test_exercises
def show(name, given, right, wrong):
    for answer in (right[0], *wrong[:2]):
        test_exercises.check(name, answer, *given)
test_exercises._try = show
objects = test_exercises.Objects()"""


def test_every_exercise_shows_what_is_right_and_what_is_wrong(open_cells):
    tests = {number: f"test_exercises.test_{number}(objects)" for number in sorted({name[:2] for name in EXERCISES})}
    tests["08"] = "test_exercises.test_08()"
    lab = open_cells("every_exercise", SHOW, *tests.values())
    for number, cell in tests.items():
        said = lab.cell_with(cell).locator(".jp-OutputArea-output").all_inner_texts()
        assert len(said) == 3 * sum(name.startswith(number) for name in EXERCISES)
        for place, shown in enumerate(said):
            assert re.match(r"Not yet: .{10}.*Hint: .{10}" if place % 3 else "Right. .{10}", shown), (number, shown)
    lab.scroll_to(tests["05"])
    lab.picture("every_exercise")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_checks_say_what_is_wrong(lab_folder, open_notebook, name):
    notebook = release((ROOT / "notebooks" / f"{name}.ipynb").read_bytes())
    (lab_folder / "notebooks" / f"course_{name}.ipynb").write_bytes(notebook)
    lab = open_notebook(f"course_{name}")
    for cell in NOTEBOOKS[name]:
        lab.run_cell_with(cell)
    for exercise in (exercise for exercise in ANSWERS if exercise[:2] == name[:2]):
        for source, says in ANSWERS[exercise].items():
            shown = lab.answer(exercise, source)
            assert says in shown and shown.startswith("Right. ") == says.startswith("Right. ")
            lab.picture(f"exercise_{exercise}_{says[:9]}")
    assert lab.errors == []
