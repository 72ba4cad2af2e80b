"""Scripts beside the product: what made the demo model, and the experiments."""
