"""What travels on the control plane: topics, payloads, invites, sealed joins."""
