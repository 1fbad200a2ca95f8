"""What fine-tuning a mixture-of-experts transformer costs: measured profiles, a model fitted to them, and prices."""
