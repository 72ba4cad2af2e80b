"""Carries links between nodes that cannot reach each other, without reading them."""
