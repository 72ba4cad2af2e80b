"""OpenAI's `POST /v1/responses`, without its memory: nothing is stored, so each request carries the
whole conversation."""
