"""The wheel has in bttlab/share what the package reads in a checkout: see util/places.py and pyproject.toml."""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

FOLDERS = ("data", "docs", "hls_src", "notebooks", "overlays")
BUILT_IN = "airline"


class BuildWithShare(build_py):
    """Build the package and the folders that it reads, from nothing: what an earlier build left is not ours."""

    def run(self) -> None:
        """Run the command; an editable installation reads the checkout."""
        if self.editable_mode:
            super().run()
            return
        package = Path(self.build_lib) / "bttlab"
        shutil.rmtree(package, ignore_errors=True)
        super().run()
        for folder in FOLDERS:
            shutil.copytree(folder, package / "share" / folder, ignore=_not_to_be_shared)


class SourceWithShare(sdist):
    """Archive what the wheel is built of: the folders of MANIFEST.in without what is not ours to give."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files that belong into the archive."""
        super().make_release_tree(base_dir, [name for name in files if not _is_left_out(name)])


def _is_left_out(name: str) -> bool:
    parts = name.split("/")
    return parts[0] in FOLDERS and any(_not_to_be_shared("/".join(parts[:k]), [parts[k]]) for k in range(1, len(parts)))


def _not_to_be_shared(folder: str, names: list[str]) -> list[str]:
    """Return what is left out: hidden files, what was built, and corpora that are not ours to give."""
    return [
        name
        for name in names
        if name.startswith((".", "__"))
        or os.path.join(folder, name) == os.path.join("hls_src", "build")
        or (name != BUILT_IN and os.path.isdir(os.path.join(folder, name, "train")))
    ]


setup(cmdclass={"build_py": BuildWithShare, "sdist": SourceWithShare})
