"""From logits to tokens at the tail: what requests ask of a draw, and log-probabilities."""
