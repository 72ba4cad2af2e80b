"""Pools of Mooncake's cluster: nodes that compute prompts, nodes that decode, lines between them."""
