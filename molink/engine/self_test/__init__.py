"""Proof that a class of the library, cut into stages, computes what it computes whole."""
