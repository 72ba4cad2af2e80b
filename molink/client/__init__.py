"""HTTP client of the REST API."""
