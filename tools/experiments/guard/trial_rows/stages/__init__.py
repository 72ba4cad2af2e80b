"""Processes of stages that do one thing otherwise than the product's: members that misbehave."""
