"""The U50 as a training processor: its machine, the programs that it runs, and how they are checked."""
