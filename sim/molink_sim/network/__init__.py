"""Wires between stages: what a link can carry (`line`), and who decides what it carries next."""
