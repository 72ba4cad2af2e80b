"""Protocol between a stage and its engine: ten methods, and the values that they take."""
