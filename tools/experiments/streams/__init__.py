"""Many answers at once: what the API's server itself costs."""
