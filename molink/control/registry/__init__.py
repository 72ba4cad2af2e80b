"""The SQLite file of members, invites and keys."""
