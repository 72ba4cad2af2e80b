"""A model on disk and on paper, read without torch: description, sizes, shards, manifest."""
