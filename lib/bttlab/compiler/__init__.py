"""From a model to a program of the training processor: docs/processor.md."""
