"""KV blocks: whose they are and how many are free."""
