"""What room KV takes, and what it costs to take less."""
