"""The way of a request to a ring and of its tokens back."""
