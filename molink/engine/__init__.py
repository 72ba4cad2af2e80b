"""One stage's layers, their KV, and the sampling at the end; each floor knows those below it."""
