"""What weights of few bits cost and gain."""
