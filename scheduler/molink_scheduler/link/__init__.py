"""What crosses a link next, in which pieces, and how fast."""
