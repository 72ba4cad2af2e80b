"""Experiments on one link: contention, chunk decisions, codecs, caps."""
