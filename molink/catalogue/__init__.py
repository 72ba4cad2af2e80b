"""What can be run: the catalogue's models on given cards, or on a cluster's PCs, by the planner."""
