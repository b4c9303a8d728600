"""s1's budget forcing, which ends or prolongs thinking."""

import pytest
from scripted_engine import ScriptedEngine

from leash_trl.engines.engine import SamplingSettings
from leash_trl.evaluation.decoding import BudgetForcing, step_seed


@pytest.fixture
def spelled(tokenizer):
    """Token ids of some letters: W is "Wait,", E ends thinking, F is the final answer's line, $ the completion."""
    words = {"W": " Wait, ", "E": "</think>", "F": " So the answer is ", "$": tokenizer.eos_token}
    return lambda letters: [token for letter in letters for token in tokenizer.encode(words.get(letter, letter))]


@pytest.fixture
def complete(tokenizer, spelled):
    """Factory: engine and completion of one row that says these texts, in 100 tokens at most."""

    def run(strategy, texts):
        engine = ScriptedEngine(tokenizer, {5: [*map(spelled, texts)]})
        (completion,) = strategy.generate_completions(engine, [[5]], [1], SamplingSettings(max_new_tokens=100))
        return engine, completion

    return run


def forcing(max_thinking_tokens=10, wait=" Wait, ", **parameters):
    return BudgetForcing(
        max_thinking_tokens=max_thinking_tokens, final_answer=" So the answer is ", wait=wait, **parameters
    )


# what the row says, and the completion
@pytest.mark.parametrize(
    ("strategy", "texts", "expected"),
    [
        # shared vectors s1_budget_max, s1_budget_min and s1_ignore_stops_at_budget, a hundredth as long
        (forcing(), ["????E", "7$"], "????E7$"),
        (forcing(), ["??????????E", "7$"], "??????????E7$"),
        (forcing(), ["?" * 25, "7$"], "??????????EF7$"),  # one token beyond the budget tells that it is cut
        (forcing(max_thinking_tokens=80, num_ignore=1), ["?????E", "???????E", "7$"], "?????W???????E7$"),
        (forcing(num_ignore=2), ["??????E", "???E", "????E", "7$"], "??????W???W?EF7$"),
        # 10 in all, as when the whole is cut afterwards
        # a budget that is used up; one token is left, which "Wait" would take
        (forcing(num_ignore=3), ["??????????E", "7$"], "??????????E7$"),
        # EOS ends thinking too; both are thrown away
        (forcing(num_ignore=1), ["???$", "??$", "7$"], "???W??E7$"),
        # the answer ends at the limit
        (forcing(), ["????E", "7" * 200], "????E" + "7" * 95),
    ],
)
def test_completions_by_hand(complete, spelled, strategy, texts, expected):
    _, completion = complete(strategy, texts)
    assert completion == spelled(expected)


def test_each_step_of_forcing_goes_on_from_all_that_was_said(complete, spelled):
    engine, _ = complete(forcing(num_ignore=1), ["?????E", "???E", "7$"])
    first, second, answer = engine.asked(5)
    assert first.prompt_ids == (5,)
    assert second.prompt_ids == (5, *spelled("?????W"))
    assert answer.prompt_ids == (5, *spelled("?????W???E"))
    # one token more than is left of the budget of 10; and what is left of 100 tokens
    assert [request.max_new_tokens for request in (first, second, answer)] == [11, 6, 90]
    assert first.stop_token_ids == {*spelled("E")}
    assert answer.stop_token_ids == set()
    assert first.seed == 1
    assert second.seed == step_seed(1, 1)
    assert answer.seed == step_seed(1, 2)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"max_thinking_tokens": 0}, "max_thinking_tokens is 0"),
        # </think> 1, final answer 4, answer at least 1, and a "Wait"
        ({"max_thinking_tokens": 95}, "max_thinking_tokens is 95"),
        ({"max_thinking_tokens": 94, "num_ignore": 1}, "max_thinking_tokens is 94"),
        ({"stop_thinking": " So the "}, "stop_thinking is ' So the '"),
        ({"wait": "Attends", "num_ignore": 1}, "wait is 'Attends'"),
        ({"num_ignore": -1}, "num_ignore is -1"),
    ],
)
def test_parameters_that_cannot_be_followed_are_named(tokenizer, parameters, named):
    forcing(max_thinking_tokens=94).check(tokenizer, 100)
    with pytest.raises(ValueError, match=named):
        forcing(**parameters).check(tokenizer, 100)
