"""MoLink serves large language models over a ring of home PCs joined by slow links."""

__version__ = "0.1.0"
