"""The coordinator of a cluster of agents: who is there, which rings they form, who serves what."""
