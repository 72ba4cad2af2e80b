"""How a class of the library becomes a stage that owns some of its layers, and the proof of it."""
