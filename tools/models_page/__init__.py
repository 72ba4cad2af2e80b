"""docs/models.md: which families are served, and what PCs the models take that are run at home."""
