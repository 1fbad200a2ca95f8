"""Side-by-side benchmarks: contenders take turns on the same work in one process."""
