"""The port for agents: they join there, fetch weights, and are told what they have given."""
