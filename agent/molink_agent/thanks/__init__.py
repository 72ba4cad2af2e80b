"""Whom this PC has helped: asked of the coordinator, kept, and said in words."""
