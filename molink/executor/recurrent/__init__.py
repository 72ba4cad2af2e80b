"""Layers that keep a state instead of KV (linear attention, Mamba, short convolutions)."""
