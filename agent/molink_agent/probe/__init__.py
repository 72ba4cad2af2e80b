"""Probes of the agent's PC: devices, memory, network, clock, who uses it."""
