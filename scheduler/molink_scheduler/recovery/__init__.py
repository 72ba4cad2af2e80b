"""Recovery of a ring that loses stages: events in, instructions out."""
