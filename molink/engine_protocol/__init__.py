"""Protocol between a stage and its engine: nine methods, and the values that they take."""
