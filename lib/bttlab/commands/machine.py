"""The check of the machine, as a table: what `bttlab doctor` prints in a terminal."""

from html import escape

from IPython.display import HTML

from bttlab.commands import NOTE, OK, PROBLEM
from bttlab.commands.doctor import examine

# Words beside the colours: nobody has to tell two of them apart.
_MARKS = {OK: ("#009E73", "ok"), NOTE: ("#6B6B6B", "not here"), PROBLEM: ("#D55E00", "problem")}


def check_machine() -> HTML:
    """Examine this machine as `bttlab doctor` does.

    Returns
    -------
    HTML
        A table of what was found.
    """
    rows = []
    for check in examine():
        colour, word = _MARKS[check.status]
        way_out = f"<br><em>{escape(check.way_out)}</em>" if check.way_out else ""
        looks = f"background:{colour};color:white;padding:1px 7px;border-radius:8px;white-space:nowrap"
        badge = f"<span style='{looks}'>{word}</span>"
        cells = (badge, f"<b>{escape(check.name)}</b>", escape(check.detail) + way_out)
        rows.append("<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>")
    return HTML(f"<table>{''.join(rows)}</table>")
