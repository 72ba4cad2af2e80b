"""Formats in which models write reasoning and calls of tools: one reader for each.

A reader takes the answer's text as it comes and gives parts. It holds back what may become a mark
(`<tool_call>`) until that is clear, so that the parts, put together, do not depend on where the
text was cut.
"""
