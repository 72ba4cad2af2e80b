"""What an operator or a volunteer may set, parsed and checked before anything starts."""
