"""One stage of the model: its layers, their KV, and the sampling at the end of the ring."""
