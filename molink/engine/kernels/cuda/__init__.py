"""Kernels for CUDA cards, in Triton."""
