"""The `molink` command."""
