"""Sphinx's settings for the site; build.py lays out its sources."""

import re

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

project = "BTT Lab"
html_title = "BTT Lab"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_search_summary = False  # it is fetched, which a browser does not do for files
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False
templates_path = []
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
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


def setup(app) -> None:
    """Have formulas drawn without scripts from a network."""
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: _mathml(self, node, "inline"), None),
        (lambda self, node: _mathml(self, node, "block"), None),
    )
