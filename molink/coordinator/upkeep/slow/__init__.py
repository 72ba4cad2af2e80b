"""Rings and members that have become slow."""
