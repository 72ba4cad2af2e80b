"""Who belongs to the cluster, what each node says of itself, and what it has given."""
