"""The pages of `docs/papers`: their rows, and the commands that show the rows' figures."""
