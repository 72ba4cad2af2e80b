"""OpenAI's `/v1/responses`. An answer can be read again for a while, but is no memory: each request
carries the whole conversation."""
