"""Names of before, which stay for a release."""

import importlib

import pytest

RENAMED = (
    ("bttlab.model.loop", "train_pieces", "train_segments"),
    ("bttlab.baseline.receipt", "Figure", "ReceiptQuantity"),
    ("bttlab.baseline.receipt", "figures_of", "quantities_of"),
    ("bttlab.runs.metrics", "METRICS", "METRICS_FILE"),
    ("bttlab.runs.metrics", "figures_of", "quantities_of"),
    ("bttlab.runs.metrics", "stretches", "segment_means"),
    ("bttlab.runs.record", "Figure", "QuantityDict"),
    ("bttlab.runs.sweep.spec", "FIGURES", "METRICS"),
    ("bttlab.compiler.ops.transfers", "Transfer", "Boundary"),
    ("bttlab.compiler.ops.tt_linear", "Linear", "TTLinear"),
    ("bttlab.compiler.ops.columns", "Columns", "GatherColumns"),
    ("bttlab.compiler.ops.columns", "Prepend", "PrependRows"),
    ("bttlab.compiler.ops.elementwise", "Row", "RowOperand"),
    ("bttlab.compiler.ops.elementwise", "Rows", "TokenRowsOperand"),
    ("bttlab.compiler.ops.elementwise", "Factors", "FactorsOperand"),
    ("bttlab.compiler.ops.elementwise", "Number", "NumberOperand"),
    ("bttlab.compiler.ops.elementwise", "Function", "Activate"),
    ("bttlab.compiler.ops.embedding", "Table", "DenseEmbedding"),
    ("bttlab.compiler.ops.embedding", "TTMTable", "TTMEmbedding"),
    ("bttlab.compiler.ops.embedding", "TypeTable", "TypeEmbedding"),
)


@pytest.mark.parametrize(("module", "old", "new"), RENAMED)
def test_a_name_of_before_is_the_new_one_with_a_warning(module, old, new):
    of = importlib.import_module(module)
    with pytest.warns(FutureWarning, match=f"{old} is now {new}") as caught:
        assert getattr(of, old) is getattr(of, new)
    assert caught[0].filename == __file__  # where it is used


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match=r"'bttlab\.model\.loop' has no attribute 'nothing'"):
        importlib.import_module("bttlab.model.loop").nothing  # noqa: B018
