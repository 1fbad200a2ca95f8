"""Atomic files, locks, plugins, quantities: what all other packages build on."""
