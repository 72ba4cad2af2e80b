"""Messages of the control plane: topics, payloads, invites, sealed joins."""
