"""The completions table: what it shows of whom, and that no completion can break it or the page around it."""

import html
import re

import pytest
from tensorboard.plugin_util import markdown_to_safe_html

from leash_trl.trainer.completion_sample import MAX_CHARACTERS, completion_sample


HOSTILE = [
    "a | b || c",
    "<script>alert(1)</script><b>bold</b>",
    "</td></tr></table><h1>out</h1>",
    "**strong** _em_ `code` ```\nfence\n```",
    "[link](javascript:alert(1)) ![image](x) <a href='http://x'>",
    "# head\n- item\n1. item\n> quote\n---",
    "\\| \\* &lt; &amp; &#42; $x_1$",
    "\x02wzxhzdk:0\x03 klzzwxh:0001 \x00 \ud800",
    "語 é \u202e \u2028 😀",
]


def logs(completions, prompts=None, rewards=None, extra=None):
    size = len(completions)
    return {
        "prompt": prompts or [f"prompt {i}" for i in range(size)],
        "completion": completions,
        "rewards": rewards or {"reward": [1.0] * size},
        "extra": extra or {},
        "advantages": [float(i) for i in range(size)],
    }


def page(table):
    """The table as TensorBoard shows it: rows of cells, as HTML."""
    shown = markdown_to_safe_html(table)
    assert re.sub(r"(?s)<table>.*</table>", "", shown).strip() == "", "something stands outside the table"
    return [re.findall(r"(?s)<t[dh]\b[^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"(?s)<tr>(.*?)</tr>", shown)]


def visible(text):
    """Without what has no shape of its own, and the replacement character that pages show in its place."""
    return "".join(char for char in text if char.isprintable() and char != "\ufffd")


def test_columns_and_values_are_those_of_the_batch():
    table = completion_sample(
        logs(
            ["one", "two"],
            rewards={"right": [1.0, -1.0], "format": [0.5, None]},
            extra={"length": [7, 12], "penalty": [0.0, 0.123456], "note": ["x", ["y", 1]]},
        ),
        None,
    )
    assert [[html.unescape(cell) for cell in row] for row in page(table)] == [
        ["prompt", "completion", "right", "format", "length", "penalty", "note", "advantage"],
        ["prompt 0", "one", "1", "0.5", "7", "0", "x", "0"],
        ["prompt 1", "two", "-1", "", "12", "0.1235", "['y', 1]", "1"],
    ]


def test_conversations_show_roles_and_all_they_hold():
    prompt = [{"role": "system", "content": "short"}, {"role": "user", "content": "16 + 9"}]
    calls = [{"function": {"name": "add", "arguments": {"a": 16}}}]
    answer = [{"role": "assistant", "reasoning_content": "well", "content": None, "tool_calls": calls}]
    [_, [shown_prompt, shown_answer, *_]] = page(completion_sample(logs([answer], prompts=[prompt]), 1))
    assert html.unescape(shown_prompt).split("<br>") == ["system: short", "user: 16 + 9"]
    assert html.unescape(shown_answer).split("<br>")[0] == "assistant: well"
    assert '"arguments": {"a": 16}' in html.unescape(shown_answer)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_can_be_anything_but_text(text):
    rows = page(completion_sample(logs([text, "next"], rewards={text: [1.0, 1.0]}), 2))
    assert [len(row) for row in rows] == [4, 4, 4]
    for cell in (rows[0][2], rows[1][1]):
        assert set(re.findall(r"<[^>]*>", cell)) <= {"<br>"}
        shown = html.unescape(cell.replace("<br>", ""))
        assert visible(shown) == visible(text)
    assert rows[2][1] == "next"


@pytest.mark.parametrize(
    ("size", "count", "shown"),
    [
        (8, None, [0, 2, 4, 6]),
        (8, 2, [0, 4]),
        (3, None, [0, 1, 2]),
        (2, 4, [0, 1]),
        (8, 0, []),
        (8, -1, []),
        (0, 4, []),
    ],
)
def test_completions_are_spread_over_the_batch(size, count, shown):
    table = completion_sample(logs([f"completion {i}" for i in range(size)]), count)
    assert re.findall(r"completion (\d+)", table) == [str(i) for i in shown]
    assert (table == "") == (not shown)


def test_long_texts_are_cut_in_the_middle_and_say_by_how_much():
    text = "a" * 1000 + "b" * 500 + "c" * 1000
    [_, [_, shown, *_]] = page(completion_sample(logs([text]), 1))
    assert html.unescape(shown).split("<br>") == ["a" * 1000, "[... 500 characters left out ...]", "c" * 1000]
    [_, [_, whole, *_]] = page(completion_sample(logs(["a" * MAX_CHARACTERS]), 1))
    assert whole == "a" * MAX_CHARACTERS
