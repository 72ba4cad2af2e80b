"""Which ring serves a request, and whether one should: forecasts, routing, admission by targets."""
