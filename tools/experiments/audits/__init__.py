"""Experiments on audits: how far honest rings are apart, how soon a liar is found."""
