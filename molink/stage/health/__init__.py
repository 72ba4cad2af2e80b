"""What a stage tells of itself while it serves."""
