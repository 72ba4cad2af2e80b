"""Drafts: guesses of the tokens to come, which the ring verifies several at a time."""
