"""Recording of what a stage's core was told, written so that it can be played again."""
