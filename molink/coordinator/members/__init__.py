"""Members: the nodes, what each reports of itself, and the stages that they host."""
