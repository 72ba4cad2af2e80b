"""Network of this PC: how it is reached and reaches others, whatever routers are between them."""
