"""Steps: one forward pass over the rows of a batch, what is measured of it, and its room."""
