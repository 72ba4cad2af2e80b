"""The operator's dashboard: a client of the REST API that shows a cluster in a terminal."""
