"""What a PC is measured by before it is given layers; each is a program of its own."""
