"""The example in the README runs as printed."""

import re

from conftest import ROOT


def test_the_python_example_trains(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(example, names)
    first, last = map(float, re.fullmatch(r"loss (\S+) -> (\S+)\n", capsys.readouterr().out).groups())
    assert last < 0.9 * first and names["parameters"].keys()
