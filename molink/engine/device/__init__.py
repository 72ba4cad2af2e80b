"""Devices: what a card or the CPU can do, copies to it, and limits of its memory."""
