"""The control plane: who is there, who holds which layers. Never tokens or tensors."""
