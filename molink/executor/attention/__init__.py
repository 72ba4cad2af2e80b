"""Attention of ragged batches over a paged KV pool."""
