"""Cells: PCs of one LAN that lend each other's stages main memory for KV, once confirmed."""
