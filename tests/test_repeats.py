"""Which rows say the same as another."""

from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.data import repeats
from leash_trl.data.repeats import contradictory_prompts, digests, first_of_each


TEXTS = st.lists(st.sampled_from([b"a", b"b", b"c"]))


@given(TEXTS)
def test_first_of_each_keeps_every_text_once_and_in_order(texts):
    kept = first_of_each(texts)
    assert [texts[index] for index in kept] == list(dict.fromkeys(texts))
    assert all(texts[index] not in texts[:index] for index in kept)


def test_digests_see_the_named_columns_only_and_are_the_same_across_batches(monkeypatch):
    monkeypatch.setattr(repeats, "ROWS_PER_READ", 2)
    rows = Dataset.from_list([{"q": q, "a": a} for q, a in [("x", 1), ("x", 2), ("y", 1), ("x", 1), ("x", 2)]])
    assert first_of_each(digests(rows, ["q"])) == [0, 2]
    assert first_of_each(digests(rows, ["q", "a"])) == [0, 1, 2]


def test_digests_do_not_mistake_where_one_column_ends():
    rows = Dataset.from_list([{"q": "ab", "a": "c"}, {"q": "a", "a": "bc"}])
    assert len(set(digests(rows, ["q", "a"]))) == 2


def test_digests_do_not_depend_on_the_order_of_keys():
    one = Dataset.from_list([{"p": [{"role": "user", "content": "x"}]}])
    other = Dataset.from_list([{"p": [{"content": "x", "role": "user"}]}])
    assert list(digests(one, ["p"])) == list(digests(other, ["p"]))


@given(st.lists(st.tuples(st.sampled_from([b"p", b"q"]), st.sampled_from([b"1", b"2"]))))
def test_a_prompt_is_contradictory_if_it_has_two_answers(rows):
    prompts = [prompt for prompt, _ in rows]
    expected = {prompt for prompt in prompts if {(prompt, b"1"), (prompt, b"2")} <= set(rows)}
    assert contradictory_prompts(prompts, [prompt + answer for prompt, answer in rows]) == expected
