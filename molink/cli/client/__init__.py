"""`molink generate`, `chat`, `bench` and `status`: clients of a running server, here or anywhere.

They speak the public REST API and nothing else, so what they can do every API user can do.
"""
