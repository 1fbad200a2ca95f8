"""The airline corpus: its bytes, which recorded runs are of."""

import hashlib

from conftest import ROOT

FOLDER = ROOT / "data" / "airline"


def test_its_bytes_stay():
    files = sorted(path for path in FOLDER.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    assert digest == "3a70616feb64d78ce6f4df95c562a7203dca78eee04b731addf1fe11b50326f1"
