"""Anthropic's endpoints: messages, and how many tokens one would take."""
