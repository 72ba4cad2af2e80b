"""How long steps and rounds take, learned and forecast."""
