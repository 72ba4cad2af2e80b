"""KV that a stage's device has no room for, lent to and attended by another process of its PC."""
