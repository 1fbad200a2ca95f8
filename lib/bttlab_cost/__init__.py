"""What fine-tuning a large language model costs: a model of a GPU step fitted to published measurements, and prices."""
