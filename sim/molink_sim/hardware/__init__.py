"""Measured step times of real stages."""
