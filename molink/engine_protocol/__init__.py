"""Protocol between a stage and its engine: eleven methods, and the values that they take."""
