"""Experiments about the dashboard."""
