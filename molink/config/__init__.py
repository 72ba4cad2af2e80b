"""Settings of an operator or a volunteer, parsed and checked before anything starts."""
