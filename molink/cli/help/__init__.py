"""What help says beside a command's own sentences: examples, sections, names of other programs."""
