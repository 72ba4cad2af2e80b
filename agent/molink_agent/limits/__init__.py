"""Limits of what the PC's owner lends, and whether now is a time to lend it."""
