"""What a stage process and its parent say to each other: commands, facts and health."""
