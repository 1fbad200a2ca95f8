"""TT and TTM formats, contraction flows and their costs."""

from bttlab.tensor.auto import cheapest_order
from bttlab.tensor.cost import Cost, PassCost, Step, flow_cost, grouped_cost, lookup_cost, optimal_cost
from bttlab.tensor.flows import FLOWS, Flow, grouped
from bttlab.tensor.layers import EMBEDDING_STD, TTLinear, TTMEmbedding, xavier_std
from bttlab.tensor.order import Order, order_cost, order_of
from bttlab.tensor.quantised import QuantisedCores, fake_quantised
from bttlab.tensor.shapes import ShapeError, check_modes, full_ranks, tt_shapes, ttm_shapes
from bttlab.tensor.tt import core_std, matrix_to_tt, tt_to_matrix
from bttlab.tensor.ttm import matrix_to_ttm, ttm_to_matrix

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
