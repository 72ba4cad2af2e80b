"""What a stage's core was told, kept and written so that it can be played again."""
