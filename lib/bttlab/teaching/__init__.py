"""Notebooks as copies to work in, the nbgrader course, and the rules that check the exercises."""
