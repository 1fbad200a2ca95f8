"""Places of the files that come with the package: data/, docs/, hls_src/, notebooks/ and overlays/ are folders of ROOT.

ROOT is the checkout, or, where a wheel was installed, the folder `share` of the package, into which setup.py puts them.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = (_PACKAGE / "share").is_dir()
ROOT = _PACKAGE / "share" if INSTALLED else _PACKAGE.parents[1]
