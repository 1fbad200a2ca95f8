"""Find plugins, which installed packages add to the lab through entry points; name the extra of a missing package.

The groups are `bttlab.commands` (a module for `bttlab NAME`) and `bttlab.views` (a name in `bttlab.lab`).
"""

import functools
import re
import sys
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires

OWNERS = ("bttlab", "bttlab-methods", "bttlab-cost", "bttlab-hardware")
DISTRIBUTIONS = {  # of modules that have another name
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "tltorch": "tensorly-torch",
    "yaml": "pyyaml",
}
# From Python 3.13 on, pip installs them in no other way: NumPy 1, which they name, has no wheel.
PYNQ_BY_HAND = "pip install --no-deps pynq==4.0.0 pynqutils==0.1.3"


@functools.cache
def plugins(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of one group, such as "views", by name; call `load` on one to import it."""
    return {point.name: point for point in entry_points(group=f"bttlab.{kind}")}


def missing_package(error: ImportError, wanted_for: str = "this") -> str | None:
    """Return the line that names a missing package and what installs it; None if none of ours requires it.

    Examples
    --------
    >>> missing_package(ModuleNotFoundError(name="pynq"), "--device auto")
    "--device auto needs pynq, which is not installed: pip install 'pynq==3.0.1' (of bttlab[lab]: docs/hosts.md)"
    """
    module = (error.name or "").partition(".")[0]
    package = DISTRIBUTIONS.get(module, module).replace("_", "-").lower()
    if package in ("pynq", "pynqutils") and sys.version_info >= (3, 13):
        return f"{wanted_for} needs {package}, which is not installed: {PYNQ_BY_HAND} (docs/hosts.md)"
    if package in OWNERS:  # an installation of another version than this source
        return None
    for owner in OWNERS:
        try:
            lines = requires(owner) or ()
        except PackageNotFoundError:
            continue
        for line in lines:
            if re.match(r"[\w.-]+", line)[0].replace("_", "-").lower() == package:
                extra = re.search(r"""extra == ['"]([\w-]+)""", line)
                requirement = line.partition(";")[0].strip()
                return (
                    f"{wanted_for} needs {package}, which is not installed: pip install '{requirement}' "
                    f"(of {owner}{f'[{extra[1]}]' if extra else ''}: docs/hosts.md)"
                )
    return None
