"""What the tail spends on drawing tokens."""
