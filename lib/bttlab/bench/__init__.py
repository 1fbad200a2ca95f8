"""Side-by-side benchmarks: a module each, with measure() -> Result, tables(result) and, if it has one, draw(result).

Contenders take turns on the same work in one process tree; `record` keeps what they found, `page` shows it.
"""
