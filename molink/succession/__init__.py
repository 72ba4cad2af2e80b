"""One coordinator after another without an outage: how the old one leads PCs and users on."""
