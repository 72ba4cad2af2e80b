"""Times of steps and rounds, learned and forecast."""
