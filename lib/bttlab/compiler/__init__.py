"""Compile models to programs of the training processor (docs/processor.md)."""
