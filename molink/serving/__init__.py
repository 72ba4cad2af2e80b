"""What serving a model needs, whoever computes it: the service, the model card, the text."""
