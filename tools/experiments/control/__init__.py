"""Experiments on the control plane: agents, brokers, coordinators at scale."""
