"""What KV costs that leaves a device's memory and comes back."""
