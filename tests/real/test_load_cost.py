"""The table of what a load costs more, and when that is too much."""

from tools.real.load_cost import cost_table


def test_a_cost_is_measured_by_the_processor_and_held_against_a_share():
    right = {"clock": [9.0, 5.0], "clock_without": [5.0], "cpu": [5.05], "cpu_without": [5.0]}
    slow = right | {"cpu": [5.2]}
    long = {"clock": [102.0], "clock_without": [100.0], "cpu": [101.1], "cpu_without": [100.0]}
    table = cost_table({"plain": right, "int8": slow, "int4": long}).splitlines()
    assert table[2] == "| plain | 7.00 | 5.00 | 5.05 | 5.00 | 0.05 | 1.0% | reached |"
    assert table[3].endswith("| 4.0% | MISSED |")
    assert table[4].endswith("| 1.10 | 1.1% | MISSED |")
