"""Parts that serving a model needs wherever it is computed: the service, the model card, the
text."""
