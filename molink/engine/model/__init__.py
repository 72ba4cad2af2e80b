"""A stage's model: the library's class cut to some layers, its weights, what rewrites it."""
