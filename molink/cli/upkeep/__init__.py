"""Commands with which an operator keeps a coordinator: its copies and its service."""
