"""The API described by itself: `/openapi.json`, and a page at `/docs` to try it."""
