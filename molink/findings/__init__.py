"""Findings for an operator: what stands out in a cluster, judged from its reports.

One pure judgement for all who tell of it: the coordinator (`GET /cluster/findings`, metrics) and
the dashboard, live or from a recording.
"""
