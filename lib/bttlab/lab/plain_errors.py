"""In a notebook, what the user can put right is a sentence, as on the command line; all else keeps its traceback."""

import sys

from IPython import get_ipython

from bttlab.errors import BttlabError


def show_sentences() -> None:
    """Have IPython show a `BttlabError` as its message alone; the cell counts as failed all the same."""
    shell = get_ipython()
    if shell is None:
        return

    def sentence(shell, kind, error, traceback, tb_offset=None) -> list[str]:
        print(f"{kind.__name__}: {error}", file=sys.stderr)
        return [f"{kind.__name__}: {error}"]

    shell.set_custom_exc((BttlabError,), sentence)
