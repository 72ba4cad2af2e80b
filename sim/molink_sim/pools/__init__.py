"""Pools of Mooncake's cluster: nodes that compute prompts, others that decode, and their lines."""
