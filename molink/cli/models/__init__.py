"""Commands about a model that is not served yet: where it would run, and how it is made."""
