"""The table of `make test-gpu`: every part has a row, however it ended, and stand-ins cannot be taken for a GPU."""

import dataclasses

import pytest
from gpu_table import Machine, Report, Row, markdown


CARD = Machine("cuda", "NVIDIA X", 79.2, 2, True, {"torch": "2.11.0", "CUDA": "13.0"})
CPU = dataclasses.replace(CARD, device="cpu", name="a CPU, 1 thread")


def test_the_table_by_hand():
    rows = [Row("plan", "20.0 GiB", "passed"), Row("a | b", "", "failed: two\n lines")]
    assert markdown(CARD, rows, "2027-01-02") == (
        "`make test-gpu` · 2027-01-02 · 2 x NVIDIA X, 79 GiB · torch 2.11.0, CUDA 13.0\n"
        "\n"
        "| part | measured | result |\n"
        "| --- | --- | --- |\n"
        "| plan | 20.0 GiB | passed |\n"
        "| a / b |  | failed: two lines |\n"
    )


def test_stand_ins_are_named_above_the_table_and_in_it():
    first, *_, heading, _, _ = markdown(CPU, [Row("plan", "", "passed")], "2027-01-02").splitlines()
    assert first == "**Stand-ins on a CPU: this says nothing about a GPU.**"
    assert heading == "| part | measured | result on a CPU, no GPU |"


def test_every_part_leaves_a_row_and_its_outcome(tmp_path):
    report = Report(CARD, tmp_path / "gpu" / "table.md")
    with report.part("fine") as measured:
        measured += ["1 s", "2 GiB"]
    with pytest.raises(pytest.skip.Exception), report.part("absent"):
        pytest.skip("x is not installed")
    with pytest.raises(ValueError, match="too slow"), report.part("wrong"):
        raise ValueError("too slow\nassert 3 < 2")
    with pytest.raises(pytest.fail.Exception), report.part("refused"):
        pytest.fail("no good")
    with pytest.raises(AssertionError), report.part("wordless"):
        raise AssertionError(" ")
    with pytest.raises(KeyboardInterrupt), report.part("stopped"):
        raise KeyboardInterrupt
    assert [(row.part, row.measured, row.result) for row in report.rows] == [
        ("fine", "1 s; 2 GiB", "passed"),
        ("absent", "", "skipped: x is not installed"),
        ("wrong", "", "failed: too slow"),
        ("refused", "", "failed: no good"),
        ("wordless", "", "failed: AssertionError(' ')"),
        ("stopped", "", "was cut off"),
    ]
    assert report.path.read_text(encoding="utf-8") == report.text
