"""What layers that keep states cost."""
