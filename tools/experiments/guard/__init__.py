"""What becomes of a cluster when one of its members, or a stranger, misbehaves.

`fake_node` is a member that lies and computes nothing, `cluster` a coordinator with honest agents
and streams of their users, `attacks` what strangers and members do to it. Each other module is a
trial.
"""
