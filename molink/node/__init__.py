"""A node's side of the control plane, as agents and the local nodes of `molink serve` share it."""
