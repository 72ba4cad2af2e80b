"""Drafts of a checkpoint's own layer at the tail: how it is packaged, and how it guesses."""
