"""Reports: what an operator reads of the cluster, its news, its trace, and who has given what."""
