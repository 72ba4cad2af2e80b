"""How this PC is reached and reaches others, whatever routers are between them."""
