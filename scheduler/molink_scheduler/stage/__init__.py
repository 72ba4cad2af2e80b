"""What a stage does with what it is sent: order, pieces, checks."""
