# The operators that data/u50/operators.json counts, and none that would change the bits: no reassociation, no fusing.
config_op fadd -impl fulldsp
config_op fsub -impl fulldsp
config_op fmul -impl maxdsp
config_compile -unsafe_math_optimizations=false
