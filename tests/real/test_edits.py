"""Which edits are asked for, and what is made of their answers."""

from tools.real.edits import Answer, Edit, Row, edits_of, edits_table, other_texts

USED = (
    "def often():\n    return once()\n\n\ndef once():\n    return 1\n\n\nprint(often(), often())\n"
)


def answer(text: str, rest_s: float) -> Answer:
    return Answer(text, 101, first_s=2.0, rest_s=rest_s)


def test_the_function_that_stands_most_often_in_a_file_is_renamed(tmp_path):
    (tmp_path / "used.py").write_text(USED)
    (tmp_path / "longer.py").write_text(USED + "# " + "x" * 50 + "\n")
    (tmp_path / "unused.py").write_text("def alone():\n    pass\n" + "#" * 60 + "\n")
    (tmp_path / "plain.py").write_text("x = 1\n" * 20)
    (tmp_path / "short.py").write_text("x = 1\n")
    edits = list(edits_of(tmp_path, 1_000, 50))
    assert edits == [
        Edit("longer.py", USED + "# " + "x" * 50 + "\n", "often"),
        Edit("used.py", USED, "often"),
    ]
    assert USED in edits[1].task and "`often` to `often_renamed`" in edits[1].task
    assert [one.file for one in edits_of(tmp_path, len(USED), 50)] == ["used.py"]


def test_an_answer_with_another_text_is_named_and_speeds_are_compared_text_by_text():
    rows = [
        Row("a: f", "edit", {"none": answer("x", 20.0), "copy": answer("x", 5.0)}),
        Row("b: g", "edit", {"none": answer("y", 10.0), "copy": answer("z", 5.0)}),
        Row("chat 1", "chat", {"none": answer("w", 10.0), "copy": answer("w", 10.0)}),
        Row("ended early", "chat"),
    ]
    assert other_texts(rows) == ["b: g"]
    assert edits_table(rows).splitlines()[2:] == [
        "| edit | none | 2 | 101 | 7.5 | 1.00 x | 1.00 x | 2 of 2 |",
        "| edit | copy | 2 | 101 | 20.0 | 3.00 x | 2.00 x | 1 of 2 |",
        "| chat | none | 1 | 101 | 10.0 | 1.00 x | 1.00 x | 1 of 1 |",
        "| chat | copy | 1 | 101 | 10.0 | 1.00 x | 1.00 x | 1 of 1 |",
    ]
