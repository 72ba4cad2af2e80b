"""Reports of a coordinator to whoever asks: one value for each figure, from the answer to the
screen.

The coordinator makes these values; API, metrics, page and dashboard read them, and `plain` turns
them into the JSON of the REST API and back. The room imports nothing that runs anything, so that a
dashboard on any PC loads no more than this.
"""
