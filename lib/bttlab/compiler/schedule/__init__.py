"""The order of instructions, and their waits for each other."""
