"""Docstrings of the names that the site's API pages lay out, by numpydoc's own checks."""

import importlib
import inspect
import re
import sys
from dataclasses import dataclass, is_dataclass

import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import validate

import bttlab

from conftest import ROOT

sys.path.append(str(ROOT / "site"))

from build import API

# Of each name. GL08: no docstring, and autodoc leaves the name out; GL06, GL07: unknown sections, or in another order;
# PR02 to PR10: parameters that there are not, another order, no type, how type and text begin; RT02, RT03: the same of
# results.
RAISES = re.compile(r"\s*Raises \w")  # as prose, not as a section
EVERYWHERE = {"GL06", "GL07", "GL08", "PR02", "PR03", "PR04", "PR07", "PR10", "RT02", "RT03"}
# Of names of `bttlab`, and of those of other packages that have a section of parameters. PR01: one is not described;
# RT01: the result is not.
WITH_SECTIONS = {"PR01", "RT01"}
PUBLIC = [name for name in bttlab.__all__ if inspect.ismodule(getattr(bttlab, name))]


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


def own_fields(value) -> list[str]:
    """Return the fields that a dataclass, a pydantic model or a named tuple declares itself."""
    if not inspect.isclass(value) or not (is_dataclass(value) or hasattr(value, "_fields")):
        return []
    kinds = {name: str(kind) for name, kind in vars(value).get("__annotations__", {}).items()}
    return [name for name, kind in kinds.items() if not name.startswith("_") and "ClassVar" not in kind]


def faults(value) -> list[str]:
    """Return what numpydoc finds, by the checks above.

    A class whose objects a user gets has a section of attributes instead: it describes each field.
    """
    place, checks, more = f"{value.__module__}.{value.__qualname__}", set(EVERYWHERE), []
    doc = NumpyDocString(inspect.getdoc(value) or "")
    if value.__module__.startswith("bttlab.") or doc["Parameters"] or doc["Attributes"]:
        checks |= WITH_SECTIONS
        more = [line.strip() for line in (value.__doc__ or "").splitlines() if RAISES.match(line)]
    if fields := doc["Attributes"] and own_fields(value):
        described = {name for names, *_ in doc["Attributes"] for name in names.split(", ")}
        more += [f"no attribute {name}" for name in fields if name not in described]
    if fields or (inspect.isclass(value) and not has_constructor(value)):
        checks -= {"PR01"}
    return [f"{place}: {code} {text}" for code, text in validate(place)["errors"] if code in checks] + [
        f"{place}: {text}" for text in more
    ]


def has_constructor(value: type) -> bool:
    """Return True if users may construct it with parameters that a package of this project declares."""
    if getattr(value, "_is_protocol", False):
        return False
    maker = next((one for one in value.__mro__ if "__init__" in vars(one) or "_fields" in vars(one)), object)
    return maker.__module__.startswith("bttlab")


@pytest.mark.parametrize("page", API)
def test_public_docstrings_are_what_numpydoc_lays_out(page):
    names = laid_out(page)
    assert names and [fault for value in names.values() for fault in faults(value)] == []


def test_all_that_is_public_has_a_page():
    pages = {id(value) for page in API for value in laid_out(page).values()}
    for name in PUBLIC:
        if hasattr(package := getattr(bttlab, name), "__all__"):
            assert f"bttlab.{name}" in API and package.__all__
    top = [value for name in bttlab.__all__ if inspect.isfunction(value := getattr(bttlab, name))]
    assert len(top) > 3 and {id(value) for value in top} <= pages


def misnamed(rows: int) -> int:
    """Return a number.

    Parameters
    ----------
    columns : int
        Not one of its parameters.
    """
    return rows


@dataclass
class Sizes:
    """Two numbers.

    Raises ValueError if it is 0.

    Attributes
    ----------
    rows : int
        Of a matrix.
    """

    rows: int
    columns: int


def undescribed(rows: int) -> int:
    return rows


def test_a_wrong_docstring_is_found():
    found = " ".join(faults(misnamed))
    assert "PR01" in found and "PR02 Unknown parameters {'columns'}" in found and "RT01" in found
    assert "GL08" in " ".join(faults(undescribed)) and "PR01" not in " ".join(faults(undescribed))
    said = "Raises ValueError if it is 0.", "no attribute columns"
    assert faults(Sizes) == [f"{__name__}.Sizes: {one}" for one in said]
