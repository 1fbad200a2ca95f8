"""Docstrings of the names that the site's API pages lay out, by numpydoc's own checks."""

import importlib
import inspect
import sys

import pytest
from numpydoc.validate import validate

import bttlab

from conftest import ROOT

sys.path.append(str(ROOT / "site"))

from build import API

# Of each name. GL08: no docstring, and autodoc leaves the name out; GL06, GL07: unknown sections, or in another order;
# PR02 to PR10: parameters that there are not, another order, no type, how type and text begin; RT02, RT03: the same of
# results.
EVERYWHERE = {"GL06", "GL07", "GL08", "PR02", "PR03", "PR04", "PR07", "PR10", "RT02", "RT03"}
# Where there is a section of parameters. PR01: one is not described; RT01: the result is not.
WITH_SECTIONS = {"PR01", "RT01"}
# What users call first has sections; beside the functions of `bttlab.__all__`:
SECTIONED = {
    "bttlab.baseline": {"run_baseline"},
    "bttlab.card": {"finetune", "load_overlay", "open_parallel_trainer", "open_trainer", "start_kernel"},
    "bttlab.compiler.program": {"Options", "compile"},
    "bttlab.data": {"load_corpus"},
    "bttlab.estimate.card": {"estimate"},
    "bttlab.runs": {"resume_run", "start_run"},
    "bttlab.tensor": {
        *("TTLinear", "TTMEmbedding", "compress", "cut_vocabulary", "decompress"),
        *("matrix_to_tt", "matrix_to_ttm", "tt_svd", "tt_to_matrix", "ttm_to_matrix"),
    },
}


def laid_out(page: str) -> dict[str, object]:
    """Return the functions and classes of a page: those of __all__, else those that the module itself has."""
    module = importlib.import_module(page)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == page
    ]
    values = {name: getattr(module, name) for name in names}
    return {name: value for name, value in values.items() if inspect.isfunction(value) or inspect.isclass(value)}


def faults(value, sections: bool = False) -> list[str]:
    """Return what numpydoc finds, by the checks above; with `sections` it has to describe its parameters and result."""
    checks = EVERYWHERE | WITH_SECTIONS if sections or "Parameters\n" in (value.__doc__ or "") else EVERYWHERE
    found = validate(f"{value.__module__}.{value.__qualname__}")["errors"]
    return [f"{value.__module__}.{value.__qualname__}: {code} {text}" for code, text in found if code in checks]


@pytest.mark.parametrize("page", API)
def test_public_docstrings_are_what_numpydoc_lays_out(page):
    names = laid_out(page)
    assert names and names.keys() >= SECTIONED.get(page, set())
    assert [fault for name, value in names.items() for fault in faults(value, name in SECTIONED.get(page, ()))] == []


def test_functions_at_the_top_have_sections_and_a_page():
    top = [value for name in bttlab.__all__ if inspect.isfunction(value := getattr(bttlab, name))]
    assert len(top) > 3 and [fault for value in top for fault in faults(value, sections=True)] == []
    assert {id(value) for value in top} <= {id(value) for page in API for value in laid_out(page).values()}


def misnamed(rows: int) -> int:
    """Return a number.

    Parameters
    ----------
    columns : int
        Not one of its parameters.
    """
    return rows


def undescribed(rows: int) -> int:
    return rows


def test_a_wrong_docstring_is_found():
    found = " ".join(faults(misnamed))
    assert "PR01" in found and "PR02 Unknown parameters {'columns'}" in found and "RT01" in found
    assert "GL08" in " ".join(faults(undescribed)) and "PR01" not in " ".join(faults(undescribed))
