"""TT and TTM formats, contraction flows and their costs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "attention": ("TTAttention",),
        "auto": ("cheapest_order", "order_of"),
        "compression": ("CompressedLayer", "Compression", "compress"),
        "cost": ("Cost", "PassCost", "Step", "lookup_cost"),
        "flows": ("FLOWS", "Flow", "grouped"),
        "layers": ("EMBEDDING_STD", "TTLinear", "TTMEmbedding", "xavier_std"),
        "order": ("Order", "flow_cost", "grouped_cost", "optimal_cost", "order_cost"),
        "quantised": ("QuantisedCores", "fake_quantised"),
        "shapes": ("ShapeError", "check_modes", "choose_modes", "full_ranks", "tt_shapes", "ttm_shapes"),
        "tt": ("core_std", "matrix_to_tt", "tt_svd", "tt_to_matrix"),
        "ttm": ("matrix_to_ttm", "ttm_to_matrix"),
    },
)
