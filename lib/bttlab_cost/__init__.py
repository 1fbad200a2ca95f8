"""Cost of fine-tuning a large language model: a model of a GPU step fitted to published measurements, and prices."""
