"""Quantized weights of a checkpoint: which they are, in what format, and what is refused."""
