"""Paths of links to nodes: straight, or through the relay."""
