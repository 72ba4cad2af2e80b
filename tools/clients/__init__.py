"""Unmodified client programs against MoLink's API: `make clients`."""
