"""Members, prompts and owners that put a cluster to the test, each a row of one table."""
