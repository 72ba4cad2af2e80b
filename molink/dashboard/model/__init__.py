"""What the dashboard knows: observations, their history, and what stands out in them. Pure."""
