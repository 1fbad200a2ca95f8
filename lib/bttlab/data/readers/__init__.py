"""Declared readers of annotation formats: which keys and columns a format has, and what each means."""
