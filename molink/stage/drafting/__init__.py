"""Drafters of a ring's head, as its loop knows them."""
