"""Audits: a share of requests is computed again by another ring, and who lies is found out."""
