"""What the agent can find out about its PC: devices, memory, network, clock, who uses it."""
