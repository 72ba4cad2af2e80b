"""The life of rings: built, watched, replaced when they fail."""
