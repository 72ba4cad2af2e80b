"""The agent as it runs: does what the coordinator assigns, as far as the owner allows it."""
