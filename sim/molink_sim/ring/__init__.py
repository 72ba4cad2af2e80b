"""One ring, driven by the core: its head, stages and tail do what `molink.runtime` does."""
