"""Assignment of banks: operands that engines read in one cycle lie in different banks, so that both can work."""

IN_CORES, OUT_CORES, EMBEDDING, REST = 2, 3, 4, 5  # parameters
GRADIENT = 4  # the gradient of a parameter in bank b lies in bank b + GRADIENT, at the same address
FIRST_MOMENT, SECOND_MOMENT = 10, 11
NORMALIZED = 12  # what LayerNorm keeps
KEPT = 13  # what attention and the activation keep
WORK = (14, 15, 16, 17)  # activations and gradients of the layers
SCALARS, SCORES = 18, 19
SCRATCH = (20, 21)  # of each engine: halves of tensor trains and their gradients
