"""Long trials of what must hold up (`make reliability`): each is a function of a count that returns an Outcome."""
