"""Why does it not work? Each thing that an agent needs, looked at, with its remedy."""
