"""What the coordinator runs for its nodes beside the broker: relay and measurement."""
