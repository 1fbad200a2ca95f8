"""What a notebook's training ends with, from the receipt of the same training."""

from bttlab.baseline.receipt import Receipt
from bttlab.runs.scores import SCORES
from bttlab.util.places import ROOT

RECEIPTS = ROOT / "data" / "receipts"


def expected_scores(name: str) -> str:
    """Return the scores on the dev split of a receipt, after how many samples, and how they repeat.

    Parameters
    ----------
    name : str
        Of a receipt in data/receipts.

    Returns
    -------
    str
        A sentence.

    Raises
    ------
    RecordError
        If there is no such receipt, or it was changed.
    """
    figures = Receipt.read(RECEIPTS / f"{name}.json").figures
    scores = [
        score.in_words(figures[f"dev.{key}"].value)
        for key, score in SCORES.items()
        if f"dev.{key}" in figures and key != "mean_loss"
    ]
    return (
        f"to expect after {figures['samples'].value:,.0f} samples, on every machine: {', '.join(scores)} (measured; "
        f"bttlab replay data/receipts/{name}.json trains it again)"
    )
