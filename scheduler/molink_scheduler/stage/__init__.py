"""Core of a stage, which orders, joins and checks what the stage is sent."""
