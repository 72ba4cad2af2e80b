"""Which way a link takes to a node: straight, or through the relay."""
