"""Model of the dashboard: observations, their history, and what stands out in them. Pure."""
