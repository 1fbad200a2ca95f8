"""Plans of a tensor-train layer: its order of contraction, the products of each pass as data, and their emission."""
