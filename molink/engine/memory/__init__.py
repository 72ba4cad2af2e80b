"""KV, states and the step's geometry over them: paged blocks of ragged batches."""
