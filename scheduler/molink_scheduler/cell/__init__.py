"""Lending of memory for KV inside one PC or LAN: events in, what devices are to do out."""
