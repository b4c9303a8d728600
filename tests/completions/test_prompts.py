"""Text at the end of a prompt."""

from datasets import Dataset

from leash_trl.completions.prompts import template_arguments, with_suffix


def test_text_is_appended_to_the_last_message_of_a_copy():
    prompt = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "2 + 2?"}]
    assert with_suffix(prompt, " Now.")[1]["content"] == "2 + 2? Now."
    assert prompt[1]["content"] == "2 + 2?"


def test_a_content_of_parts_gets_a_part_more():
    parts = [{"type": "image"}, {"type": "text", "text": "2 + 2?"}]
    (message,) = with_suffix([{"role": "user", "content": parts}], " Now.")
    assert message["content"] == [*parts, {"type": "text", "text": " Now."}]


def test_no_text_leaves_the_prompt_as_it_is():
    prompt = [{"role": "user", "content": "2 + 2?"}]
    assert with_suffix(prompt, "") is prompt


def test_a_row_has_only_its_own_arguments_of_the_template_also_inside_mappings_and_lists():
    arguments = [
        {"thinking": {"type": "enabled", "budget": 9}, "tools": [{"name": "add", "limit": 0}]},
        {"thinking": {"type": "disabled"}, "tools": [{"name": "sub"}], "style": ""},
        {},
    ]
    rows = Dataset.from_list([{"chat_template_kwargs": row} for row in arguments])  # Arrow adds None to every row
    assert [template_arguments(row) for row in rows] == arguments
