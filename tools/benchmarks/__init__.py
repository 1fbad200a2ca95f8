"""Benchmarks of docs/benchmarks.md and others that need a checkout: `make bench`, `python -m benchmarks NAME`."""
