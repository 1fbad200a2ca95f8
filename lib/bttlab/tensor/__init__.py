"""TT and TTM formats, contraction flows and their costs."""

from bttlab.lazy import names_of

_MODULES = {
    "auto": ("cheapest_order",),
    "cost": ("Cost", "PassCost", "Step", "flow_cost", "grouped_cost", "lookup_cost", "optimal_cost"),
    "flows": ("FLOWS", "Flow", "grouped"),
    "layers": ("EMBEDDING_STD", "TTLinear", "TTMEmbedding", "xavier_std"),
    "order": ("Order", "order_cost", "order_of"),
    "quantised": ("QuantisedCores", "fake_quantised"),
    "shapes": ("ShapeError", "check_modes", "full_ranks", "tt_shapes", "ttm_shapes"),
    "tt": ("core_std", "matrix_to_tt", "tt_to_matrix"),
    "ttm": ("matrix_to_ttm", "ttm_to_matrix"),
}
__getattr__ = names_of(globals(), _MODULES)
__all__ = [
    "EMBEDDING_STD",
    "FLOWS",
    "Cost",
    "Flow",
    "Order",
    "PassCost",
    "QuantisedCores",
    "ShapeError",
    "Step",
    "TTLinear",
    "TTMEmbedding",
    "cheapest_order",
    "check_modes",
    "core_std",
    "fake_quantised",
    "flow_cost",
    "full_ranks",
    "grouped",
    "grouped_cost",
    "lookup_cost",
    "matrix_to_tt",
    "matrix_to_ttm",
    "optimal_cost",
    "order_cost",
    "order_of",
    "tt_shapes",
    "tt_to_matrix",
    "ttm_shapes",
    "ttm_to_matrix",
    "xavier_std",
]
