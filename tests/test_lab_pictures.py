"""Figures as cells show them: in words, and in the page's colours."""

from bttlab.lab.charts import new_figure, style
from bttlab.lab.picture import FIGURE_CLASS, Picture, describe


def _figure():
    figure = new_figure(4, 3)
    left, right = figure.subplots(1, 2)
    style(left, "Loss (measured)", "samples", "loss")
    left.plot([1, 2, 300], [7.5, 5, 0.25], label="a <run>")
    left.plot([1, 2], [3, 4])  # without a name: a grid's line, say
    style(right, "Size", "MB ($10^6$ bytes)", "")
    right.barh([0, 1], [36.7, 1.2], label="parameters")
    return figure


def test_the_words_hold_what_the_panels_show():
    words = describe(_figure())
    assert "Loss (measured); loss over samples; a <run>: from 7.5 at 1 to 0.25 at 300." in words
    assert "Size; MB (10^6 bytes); parameters: 36.7, 1.2." in words


def test_a_picture_has_them_as_its_alternative():
    html = Picture(_figure(), "Two panels.")._repr_html_()
    assert 'alt="Two panels. Loss (measured)' in html and "a &lt;run&gt;: from 7.5" in html
    assert f'class="{FIGURE_CLASS}"' in html and "jp-theme-light='false'" in html
