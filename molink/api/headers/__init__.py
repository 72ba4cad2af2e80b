"""Headers of requests and answers, beside their bodies."""
