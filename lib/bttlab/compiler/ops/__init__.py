"""Operations of the graph: a class each, a file for each family."""
