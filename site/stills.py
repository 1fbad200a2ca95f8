"""Widgets as they stood, in plain HTML: nobody has to run anything, and there are no scripts.

A saved notebook has the state of its widgets; their figures stand beside them as HTML (`lab.canvas.LiveFigures`).
"""

import re
from html import escape
from math import log
from typing import Any

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
FIGURE_CLASS = "bttlab-figure"
KEPT = re.compile(r'<div class="bttlab-kept-(\w+)">(.*)</div>', re.DOTALL)
PICTURE = re.compile(r"<img[^>]*>")
LIVE = "bttlab-live-"  # begins the class of a box of figures; the name that follows is that of the kept ones
SKIPPED = {"AnyModel", "PlayModel", "LinkModel"}


def freeze(notebook: Any) -> None:
    """Put a still in the place of every widget of an executed notebook.

    Parameters
    ----------
    notebook : nbformat.NotebookNode
        Changed.

    Raises
    ------
    ValueError
        If a widget has no state.
    """
    states = notebook.metadata.pop("widgets", {}).get(STATE, {}).get("state", {})
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        kept = dict(match.groups() for output in outputs if (match := KEPT.search(_html(output))))
        for output in outputs:
            view = output.get("data", {}).get(VIEW)
            if view is None:
                continue
            html = _Still(states, kept).draw(view["model_id"])
            output["data"] = {"text/html": f'<div class="still">{html}</div>'}
            cell.outputs = [one for one in cell.outputs if not KEPT.search(_html(one))]


def _html(output: dict) -> str:
    return "".join(output.get("data", {}).get("text/html", ""))


class _Still:
    """Draws one view.

    Parameters
    ----------
    states : dict
        Of all models, by their ids.
    kept : dict of str to str
        HTML of figures, by the names of the live ones in whose place they go.
    """

    def __init__(self, states: dict[str, Any], kept: dict[str, str]):
        self._states, self._kept = states, kept

    def draw(self, identity: str) -> str:
        """Return the HTML of a widget and what is in it."""
        if identity not in self._states:
            raise ValueError(f"the notebook does not say how its widget {identity} stood")
        model = self._states[identity]
        kind, state = model["model_name"], model["state"]
        layout = self._states.get(str(state.get("layout", "")).removeprefix("IPY_MODEL_"), {}).get("state", {})
        if layout.get("display") == "none" or layout.get("visibility") == "hidden" or kind in SKIPPED:
            return ""
        for name in state.get("_dom_classes", ()):
            if pictures := PICTURE.findall(self._kept.get(name.removeprefix(LIVE), "")):
                return f"<div>{''.join(pictures)}</div>"
        if "children" in state:
            parts = [self.draw(child.removeprefix("IPY_MODEL_")) for child in state["children"]]
            return f'<div class="{"column" if kind == "VBoxModel" else "row"}">{"".join(parts)}</div>'
        if kind == "ImageModel":
            data = next((one["data"] for one in model.get("buffers", ()) if one["path"] == ["value"]), None)
            look = f'class="{FIGURE_CLASS}" alt="" style="width:{layout.get("width") or "auto"};max-width:100%"'
            return f'<img {look} src="data:image/png;base64,{data}">' if data else ""
        if kind in ("HTMLModel", "HTMLMathModel"):
            return f"<div>{state['value']}</div>" if state["value"] else ""
        return _control(kind, state)


def _control(kind: str, state: dict[str, Any]) -> str:
    """Return a control that shows its value and takes none."""
    name, value = escape(str(state.get("description") or "")), state.get("value")
    if kind in ("ButtonModel", "ToggleButtonModel"):
        return f'<span class="button">{name or escape(state.get("tooltip") or "")}</span>'
    if kind == "CheckboxModel":
        return f'<label><input type="checkbox" disabled{" checked" if value else ""}> {name}</label>'
    if "_options_labels" in state:
        index = state.get("index")
        chosen = set(index if isinstance(index, (list, tuple)) else [] if index is None else [index])
        if kind in ("DropdownModel", "RadioButtonsModel"):
            value = ", ".join(state["_options_labels"][k] for k in sorted(chosen))
        else:
            marks = (
                f'<span class="{"chosen" if k in chosen else "other"}">{escape(label)}</span>'
                for k, label in enumerate(state["_options_labels"])
            )
            return f'<div class="choice"><span>{name}</span> {" ".join(marks)}</div>'
    elif "Slider" in kind:
        place = log(value, state["base"]) if "base" in state else value  # of a logarithmic one the ends are exponents
        ends = (
            f'<meter min="{state["min"]}" max="{state["max"]}" value="{place:.6g}"></meter>'
            if isinstance(place, (int, float))
            else ""
        )
        return f'<span class="control">{name} {ends} <b>{escape(_number(value))}</b></span>'
    elif kind == "FileUploadModel" or value is None:
        return ""
    return f'<span class="control">{name} <b>{escape(str(value))}</b></span>' if name or value != "" else ""


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
