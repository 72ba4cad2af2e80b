"""What becomes of users' answers when something of a cluster fails, on real processes.

`cluster` is a coordinator and agents in homes of their own, `answers` what its users asked and got.
`kills`, `links` and `churn` are the trials.
"""
