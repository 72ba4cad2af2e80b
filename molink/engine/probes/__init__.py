"""Probes that measure a PC before it is given layers; each is a program of its own."""
