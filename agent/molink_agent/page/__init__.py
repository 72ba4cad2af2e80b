"""The owner's page: what this PC does, in a browser of its own, with a pause button."""
