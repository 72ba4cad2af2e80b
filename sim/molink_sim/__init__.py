"""The simulator: what will drive the production scheduler core on a virtual clock and network."""
