"""Metrics of the cluster and of its requests, as Prometheus reads them and OTLP carries them."""
