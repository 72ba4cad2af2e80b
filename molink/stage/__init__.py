"""The stage process: takes batches from its links, computes its layers, passes them on."""
