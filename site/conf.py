"""Sphinx's settings for the site; build.py lays out its sources."""

import inspect
import re

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.addnodes import pending_xref
from sphinx.domains.python import PyObject
from sphinx.ext.napoleon import Config, NumpyDocstring
from sphinx.util.inspect import stringify_signature

project = "BTT Lab"
html_title = "BTT Lab"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_search_summary = False  # it is fetched, which a browser does not do for files
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False
templates_path = []
extensions = ["myst_nb", "sphinx.ext.autodoc"]
default_role = "py:obj"  # names in docstrings are code, and links where a page has them
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # of nn.Module.forward and the like: they describe another class
DOCSTRINGS = Config(napoleon_google_docstring=False, napoleon_use_rtype=False, napoleon_use_ivar=True)
add_module_names = False
myst_enable_extensions = ["amsmath", "dollarmath", "html_image"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # build.py has executed them
nb_render_markdown_format = "myst"
nb_merge_streams = True
suppress_warnings = [
    "misc.highlighting_failure",
    "ref.python",
]  # cells with %matplotlib; two classes with an attribute `tokens`


def _mathml(self, node, display: str) -> None:
    """Write a formula as MathML, which browsers draw by themselves, in the page's colours."""
    formula = convert(re.sub(r"\\[;,]", r"\\ ", node.astext()), display=display)
    self.body.append(f'<div class="math">{formula}</div>' if display == "block" else formula)
    raise SkipNode


def _sections(app, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Lay out numpydoc's sections. Napoleon as an extension takes a property's words before a colon for its type."""
    if what not in ("attribute", "data", "property"):
        lines[:] = NumpyDocstring(_one_attribute_each(lines), DOCSTRINGS, app, what, name, value, options).lines()


def _one_attribute_each(lines: list[str]) -> list[str]:
    """Return a docstring with two entries for "rows, columns : int" under Attributes, as napoleon has of parameters."""
    if "Attributes" not in lines:
        return lines
    start = lines.index("Attributes")
    end = next((i for i in range(start + 2, len(lines)) if re.fullmatch("-+", lines[i])), len(lines) + 1) - 1
    text = "\n".join(lines[start:end])
    text = re.sub(
        r"^(\w+(?:, \w+)+)( : .*\n(?: .*\n?)+)",
        lambda entry: "".join(name + entry[2].rstrip("\n") + "\n" for name in entry[1].split(", ")),
        text,
        flags=re.MULTILINE,
    )
    return [*lines[:start], *text.split("\n"), *lines[end:]]


def _signature(app, what: str, name: str, value: object, options: object, args: str, result: str) -> object:
    """Leave out types of a class's signature, which its section of parameters has, and defaults that are not values."""
    if not args:
        return None
    if what == "class":
        args, result = stringify_signature(inspect.signature(value), show_annotation=False), ""
    return re.sub(r"<factory>|<function [\w.]*(<lambda>)?>", "...", args), result


def _find_classes(app, doctree: object) -> None:
    """Let the name of a class in a docstring link to it, whatever page it is on."""
    for reference in doctree.findall(pending_xref):
        if reference["reftype"] == "obj" and reference["reftarget"][:1].isupper():
            reference["refspecific"] = True


def _is_alias(app, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """Leave out fields of named tuples without a docstring: Python gives them "Alias for field number 0"."""
    return True if (getattr(value, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app) -> None:
    """Have docstrings laid out, and formulas drawn without scripts from a network."""
    next(field for field in PyObject.doc_field_types if field.name == "variable").label = "Attributes"
    app.connect("autodoc-process-docstring", _sections)
    app.connect("autodoc-process-signature", _signature)
    app.connect("doctree-read", _find_classes)
    app.connect("autodoc-skip-member", _is_alias)
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: _mathml(self, node, "inline"), None),
        (lambda self, node: _mathml(self, node, "block"), None),
    )
