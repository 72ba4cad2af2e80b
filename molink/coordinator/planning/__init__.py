"""From the nodes that are there to the rings that they could form."""
