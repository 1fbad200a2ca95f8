# The operators that make schedule counts and times (data/u50/operators.json, latencies.json), and none that would change the
# bits: no reassociation, no fusing.
config_op fadd -impl fulldsp -latency 5
config_op fsub -impl fulldsp -latency 5
config_op fmul -impl fulldsp -latency 4
config_op fdiv -impl fabric -latency 16
config_op fsqrt -impl fabric -latency 16
config_compile -unsafe_math_optimizations=false
