"""Graphics cards: what one can do, what a stage may take of it, and what to do when it is full."""
