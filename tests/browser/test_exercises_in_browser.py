"""Right, nearly right and wrong answers, and what checks show then.

One exercise of each kind, number, tuple, text, function, is answered in a student's notebook with the keyboard;
tests/test_exercises.py has answers to all of them.
"""

from pathlib import Path

import pytest

from bttlab.teaching.notebooks import release

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
CUT = """def cut(matrix, rank):
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    return {} * u[:, :rank], s[:rank, None] * v[:rank]"""
FLOW = 'my_refused_flow = """\n{}\n"""'
NOTEBOOKS = {
    "01_tensor_compression": ["%matplotlib widget"],
    "02_contraction_flow": ["%matplotlib widget", "layer = TTLinear"],
}
# Of each exercise the sources, and what the check says of them.
ANSWERS = {
    "01.1": {
        "my_parameters = None": "Not done yet: write your answer into the cell above",
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
}


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
