"""OpenAI's `/v1/files` and `/v1/batches`: requests in a file, answered where a ring is idle."""
