"""The agent as it runs: hears what the coordinator wants, does what the owner allows."""
