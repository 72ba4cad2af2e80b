"""docs/can-i-run.md is what the command prints."""

from tools.docs_site.can_i_run import PAGE, page


def test_its_tables_are_the_commands():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tools.docs_site.can_i_run`"
