"""Processes that have the weights of a stage and none of its KV, and the stage's link to them."""
