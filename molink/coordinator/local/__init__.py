"""A whole cluster for `molink serve`: its control plane and its nodes within one process."""
