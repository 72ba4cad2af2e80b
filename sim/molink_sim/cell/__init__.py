"""Cells in the simulator: devices that lend by the ledger that ships, and papers' tables."""
