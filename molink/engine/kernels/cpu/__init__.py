"""Kernels and rewritings that make decode fast on a CPU."""
