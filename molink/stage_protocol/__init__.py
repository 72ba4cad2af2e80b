"""Protocol between a stage process and its parent: commands, facts and health."""
