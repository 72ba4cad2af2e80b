"""Weights of few bits: read from many formats, held in few forms, multiplied in place."""
