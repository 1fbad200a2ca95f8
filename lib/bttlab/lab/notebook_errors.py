"""Show errors of the user in one line in a notebook, as on the command line; others keep their traceback."""

import sys

from IPython import get_ipython

from bttlab.errors import BttlabError


def show_errors_in_one_line() -> None:
    """Let IPython show a `BttlabError` as its message; the cell still fails."""
    shell = get_ipython()
    if shell is None:
        return

    def sentence(shell, kind, error, traceback, tb_offset=None) -> list[str]:
        print(f"{kind.__name__}: {error}", file=sys.stderr)
        return [f"{kind.__name__}: {error}"]

    shell.set_custom_exc((BttlabError,), sentence)
