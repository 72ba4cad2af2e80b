"""Progress of long work, in words, as bars and as lines."""
