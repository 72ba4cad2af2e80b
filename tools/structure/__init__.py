"""The structure of the product's code, measured: sizes, words, classes, flows of values, budgets.

Nothing here is told by hand: each figure is counted in syntax trees and in the graph of imports, so
that it is true of whatever is checked out. The tests of `tests/architecture` compare the figures
with `budgets.toml`.
"""
