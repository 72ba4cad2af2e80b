"""Lenders in other PCs of a stage's LAN: sealed links, who is let in, and how soon they answer."""
