"""What all decoding strategies share: scripts side by side, seeds of their steps, texts of the vocabulary."""

from dataclasses import asdict

from scripted_engine import ScriptedEngine

from leash_trl.engines.engine import SamplingSettings
from leash_trl.evaluation.decoding import (
    BudgetForcing,
    DecodingStrategy,
    ids_with_word,
    make_strategy,
    step_seed,
)


def test_rows_drop_out_as_they_end_and_keep_their_order(tokenizer):
    (end,) = tokenizer.encode("</think>")
    # the thinking of row 7 is cut at once, the others' goes on once
    texts = {
        6: [[11, end], [12, end], [13, 1]],
        7: [[14, 14, 14], [15, 1]],
        8: [[16, end], [17, end], [18, 1]],
    }
    engine = ScriptedEngine(tokenizer, texts)
    strategy = BudgetForcing(max_thinking_tokens=2, num_ignore=1, final_answer="", wait="")
    completions = strategy.generate_completions(
        engine, [[6], [7], [8]], [0, 1, 2], SamplingSettings(max_new_tokens=10)
    )
    sixth, seventh, eighth = completions
    assert sixth[-2:] == [13, 1]
    assert seventh[-2:] == [15, 1]
    assert eighth[-2:] == [18, 1]
    first_tokens = [[request.prompt_ids[0] for request in requests] for requests in engine.calls]
    assert first_tokens == [[6, 7, 8], [6, 8], [6, 7, 8]]


def test_without_a_text_after_the_thinking_a_completion_that_ends_by_itself_is_complete(tokenizer):
    """As with a model that does not think: its whole completion counts as thinking."""
    end = tokenizer.eos_token_id
    engine = ScriptedEngine(tokenizer, {6: [[11, end]], 7: [[12, 13, 14], [15, end]]})
    strategy = BudgetForcing(
        max_thinking_tokens=2, stop_thinking=tokenizer.eos_token, end_thinking="", final_answer=""
    )
    completions = strategy.generate_completions(engine, [[6], [7]], [0, 1], SamplingSettings(max_new_tokens=10))
    assert completions == [[11, end], [12, 13, 15, end]]
    assert [[request.prompt_ids[0] for request in requests] for requests in engine.calls] == [[6, 7], [7]]


def test_each_step_has_a_seed_of_its_own_that_never_changes():
    assert step_seed(3, 0) == 3
    # int.from_bytes(blake2b(b"3:1", digest_size=8).digest(), "big") % 2**63
    assert step_seed(3, 1) == 5773548458216236088


def test_a_strategy_is_made_again_from_its_record():
    assert make_strategy() == DecodingStrategy()
    recorded = asdict(make_strategy("budget_forcing", num_ignore=2))
    assert recorded["num_ignore"] == 2
    assert make_strategy(**recorded) == BudgetForcing(num_ignore=2)


def test_a_word_is_found_with_any_space_around_it(tokenizer):
    assert ids_with_word(tokenizer, "</think>", "stop_thinking") == {tokenizer.convert_tokens_to_ids("</think>")}
    assert {tokenizer.decode([index]) for index in ids_with_word(tokenizer, "the", "stop_thinking")} == {"the "}
    # "recheck" and "double-check" only contain the word
    assert {tokenizer.decode([index]) for index in ids_with_word(tokenizer, "check", "stop_thinking")} == {"check "}
