"""Layers of a step: attention, mixers, experts and products, as the library's modules call them."""
