"""`molink sim compare`: a scenario simulated, and beside it what real processes made of it."""
