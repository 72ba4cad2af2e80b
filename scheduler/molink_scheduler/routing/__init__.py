"""Routing of requests to rings: forecasts, choice of a ring, admission by targets."""
