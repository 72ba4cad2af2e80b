"""Protocol between a stage and its engine: eight methods, and the values that they take."""
