"""Links between stages: the order of what crosses them, in chunks, at a paced rate."""
