"""The volunteer's side: what will join a home PC to a cluster and supervise its stage processes."""
