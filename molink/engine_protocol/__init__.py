"""What a stage and its engine say to each other: eight methods, and the values that they take."""
