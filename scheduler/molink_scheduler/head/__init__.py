"""The head's scheduler: which requests compute next, in which batches."""
