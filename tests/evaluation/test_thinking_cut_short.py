"""Strategies that end or prolong thinking: s1's budget forcing and DEER's early exit."""

from types import SimpleNamespace

import pytest
from scripted_engine import ScriptedEngine

from leash_trl.engines.engine import SamplingSettings
from leash_trl.evaluation.decoding import BudgetForcing, Deer, answer_confidence, box_length


SURE, UNSURE = [0.1, 0.99, 0.99], [0.99, 0.5, 0.5]


@pytest.fixture
def spelled(tokenizer):
    """Token ids of some letters: W is "Wait,", E ends thinking, F is the final answer's line, $ the completion."""
    words = {"W": " Wait, ", "E": "</think>", "F": " So the answer is ", "$": tokenizer.eos_token}
    return lambda letters: [token for letter in letters for token in tokenizer.encode(words.get(letter, letter))]


@pytest.fixture
def complete(tokenizer, spelled):
    """Factory: engine and completion of one row that says these texts, trials included, in 100 tokens at most."""

    def run(strategy, texts, probabilities=()):
        engine = ScriptedEngine(tokenizer, {5: [*map(spelled, texts)]}, {5: [*probabilities]})
        return engine, strategy.complete(engine, [[5]], [1], SamplingSettings(max_new_tokens=100))[0]

    return run


def forcing(**parameters):
    gyms = {"max_thinking_tokens": 10, "final_answer": " So the answer is ", "wait": " Wait, "}
    return BudgetForcing(**{**gyms, **parameters})


def deer(**parameters):
    gyms = {"trial": " So the answer ", "end_thinking": "</think>", "max_trial_tokens": 3, "boundary": "Wait,"}
    return Deer(**{**gyms, **parameters})


# what the row says, probabilities of its trials, the completion, and how many tokens were sampled and thrown away
@pytest.mark.parametrize(
    ("strategy", "texts", "probabilities", "expected", "num_dropped"),
    [
        # shared vectors s1_budget_max, s1_budget_min and s1_ignore_stops_at_budget, a hundredth as long
        (forcing(), ["????E", "7$"], [], "????E7$", 0),
        (forcing(), ["??????????E", "7$"], [], "??????????E7$", 0),
        (forcing(), ["?" * 25, "7$"], [], "??????????EF7$", 1),  # one token beyond the budget tells that it is cut
        (forcing(max_thinking_tokens=80, num_ignore=1), ["?????E", "???????E", "7$"], [], "?????W???????E7$", 1),
        (forcing(num_ignore=2), ["??????E", "???E", "????E", "7$"], [], "??????W???W?EF7$", 3),
        # 10 in all, as when the whole is cut afterwards
        (forcing(num_ignore=2, counts_wait=True), ["????E", "???E", "????E", "7$"], [], "????W???W?EF7$", 3),
        # a budget that is used up; one token is left, which "Wait" would take
        (forcing(num_ignore=3), ["??????????E", "7$"], [], "??????????E7$", 0),
        (forcing(num_ignore=3, counts_wait=True), ["?????????E", "7$"], [], "?????????E7$", 0),
        # EOS ends thinking too; both are thrown away
        (forcing(num_ignore=1), ["???$", "??$", "7$"], [], "???W??E7$", 2),
        # the answer ends at the limit
        (forcing(), ["????E", "7" * 200], [], "????E" + "7" * 95, 0),
        # all but the end of thinking was sampled: 4 and "Wait", three of the trial, answer 2
        (deer(), ["????W", "777", "7$"], [SURE], "????E7$", 1 + 3),
        (deer(), ["????W", "777", "??????E", "7$"], [UNSURE], "????W??????E7$", 3),
        # a confidence of the threshold itself is not enough
        (deer(threshold=0.5), ["????W", "777", "??????E", "7$"], [[0.0, 0.5, 0.5]], "????W??????E7$", 3),
        # after the last trial thinking goes on undisturbed
        (deer(max_trials=1), ["?W", "777", "?WWE", "7$"], [UNSURE], "?W?WWE7$", 3),
        # thinking has 90 of 100 tokens
        (deer(), ["?" * 200, "7" * 200], [], "?" * 90 + "E" + "7" * 9, 0),
        (deer(), ["?" * 89 + "W", "777", "7$"], [UNSURE], "?" * 89 + "WE7$", 3),
        (deer(), ["??$"], [], "??$", 0),
        (deer(), ["??W", "777", "?$"], [UNSURE], "??W?$", 3),
        # what follows the box does not count: "}" closes it only with the "." after it
        (deer(max_trial_tokens=4), ["?W", "7}.W", "7$"], [[0.1, 0.99, 0.98, 0.0]], "?E7$", 1 + 4),
        (deer(max_trial_tokens=4), ["?W", "7}.W", "E", "7$"], [[0.1, 0.99, 0.0, 0.99]], "?WE7$", 4),
    ],
)
def test_completions_by_hand(complete, spelled, strategy, texts, probabilities, expected, num_dropped):
    _, completion = complete(strategy, texts, probabilities)
    assert completion.token_ids == spelled(expected)
    assert completion.num_generated_tokens == len(completion.token_ids) + num_dropped
    assert completion.is_truncated == (expected[-1] != "$")


def test_each_step_of_forcing_goes_on_from_all_that_was_said(complete, spelled):
    engine, _ = complete(forcing(num_ignore=1), ["?????E", "???E", "7$"])
    first, second, answer = engine.asked(5)
    assert (first.prompt_ids, first.max_new_tokens, first.stop_token_ids) == ((5,), 11, {*spelled("E")})
    assert (second.prompt_ids, second.max_new_tokens) == ((5, *spelled("?????W")), 10 - 5 + 1)
    assert (answer.prompt_ids, answer.max_new_tokens) == ((5, *spelled("?????W???E")), 100 - (5 + 1 + 3 + 1))
    assert answer.stop_token_ids == frozenset()


def test_each_trial_is_greedy_and_leaves_no_trace_in_what_follows(complete, spelled, tokenizer):
    engine, _ = complete(deer(), ["????W", "777", "?W", "777", "7$"], [UNSURE, SURE])
    first, trial, second, _, answer = engine.asked(5)
    assert (first.max_new_tokens, first.stop_token_ids) == (90, {*spelled("WE")})
    assert trial.prompt_ids == (5, *spelled("????"), *tokenizer.encode(" So the answer "))
    assert trial.max_new_tokens == 3
    assert (second.prompt_ids, second.max_new_tokens) == ((5, *spelled("????W")), 90 - 5)
    assert (answer.prompt_ids, answer.max_new_tokens) == ((5, *spelled("????W?E")), 100 - 7)
    assert [call["greedy"] for call in engine.calls] == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("policy", "probabilities", "expected", "exits"),
    [
        # shared vectors deer_exit_avg1, deer_exit_avg2, deer_continue_avg1 and deer_continue_avg2
        ("avg1", [0.3, 0.99, 0.98, 0.97], 0.98, True),
        ("avg2", [0.3, 0.99, 0.98, 0.97], 0.9799659852139534, True),
        ("avg1", [0.99, 0.99, 0.6, 0.99], 0.86, False),
        ("avg2", [0.99, 0.99, 0.6, 0.99], 0.8378003674967538, False),
        ("avg2", [1.0, 0.0], 1e-10, False),  # a token without probability is no error
        ("avg1", [1.0], 0, False),  # nor is a trial of one token, or of none
        ("avg2", [], 0, False),
    ],
)
def test_confidence_by_hand(policy, probabilities, expected, exits):
    confidence = answer_confidence(probabilities, policy)
    assert confidence == pytest.approx(expected, rel=1e-12)
    assert (confidence > Deer().threshold) == exits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{|20|4|}\n|So", 4),
        ("{|20|4|}|\n|So", 5),  # two tokens make the end
        ("{|2|}| and", 4),  # a bare brace may go on: \frac{1}{2}
        ("{\\frac{|1|}{|2|}}|x", 5),
        ("{(|1|,|2|)}.|x", 5),
        ("{|1", 2),
    ],
)
def test_a_trial_is_read_up_to_the_end_of_its_box(text, expected):
    assert box_length(SimpleNamespace(decode="".join), text.split("|")) == expected


@pytest.mark.parametrize(
    ("make", "parameters", "named"),
    [
        (forcing, {"max_thinking_tokens": 0}, "max_thinking_tokens is 0"),
        # </think> 1, final answer 4, answer at least 1, and a "Wait"
        (forcing, {"max_thinking_tokens": 95}, "max_thinking_tokens is 95"),
        (forcing, {"max_thinking_tokens": 94, "num_ignore": 1}, "max_thinking_tokens is 94"),
        (forcing, {"stop_thinking": " So the "}, "stop_thinking is ' So the '"),
        (forcing, {"wait": "Attends", "num_ignore": 1}, "wait is 'Attends'"),
        (deer, {"threshold": 1.5}, "threshold.* 1.5"),
        (deer, {"policy": "avg3"}, "policy.* 'avg3'"),
        (deer, {"max_trial_tokens": 1}, "max_trial_tokens.* 1"),
        (deer, {"think_share": 1.0}, "think_share is 1.0"),
        (deer, {"max_trial_tokens": 8}, "think_share is 0.9"),
        (deer, {"end_thinking": " So the " * 5}, "think_share is 0.9"),
        (deer, {"boundary": "Attends"}, "boundary is 'Attends'"),
        (deer, {"trial": "\n**Final Answer**\n\\boxed"}, "trial is "),
    ],
)
def test_parameters_that_cannot_be_followed_are_named(tokenizer, make, parameters, named):
    forcing(max_thinking_tokens=94).script(tokenizer, 100)
    with pytest.raises(ValueError, match=named):
        make(**parameters).script(tokenizer, 100)
