"""Nodes: which are members, what they say of themselves, what they may, and what is measured."""
