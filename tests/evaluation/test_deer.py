"""DEER's early exit."""

import math

import pytest
from scripted_engine import ScriptedEngine

from leash_trl.engines.engine import SamplingSettings
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.evaluation.decoding import DecodingStrategy, Deer, answer_confidence, box_length
from leash_trl.gym import CHECKPOINT


PROMPT, FILLER, ANSWER, TRIED = 5, 10, 20, 30  # tokens that mean nothing here
SURE, UNSURE = [0.1, 0.99, 0.99], [0.99, 0.5, 0.5]
TRIAL = " So the answer "
WAIT = "Wait,"  # the gym's word for a boundary
LIMIT = 100  # 90 of them for thinking


@pytest.fixture
def encode(tokenizer):
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture
def words(encode):
    return {"wait": encode(f" {WAIT} "), "end": encode("</think>"), "trial": encode(TRIAL)}


@pytest.fixture
def decode_with_deer(tokenizer):
    """Factory: engine and completion of one row that says these texts, trials included."""

    def run(texts, confidences=(), limit=LIMIT, **parameters):
        engine = ScriptedEngine(tokenizer, {PROMPT: texts}, {PROMPT: list(confidences)})
        defaults = {"trial": TRIAL, "end_thinking": "</think>", "max_trial_tokens": 3, "boundary": WAIT}
        strategy = Deer(**{**defaults, **parameters})
        return engine, strategy.complete(engine, [[PROMPT]], [1], SamplingSettings(max_new_tokens=limit))[0]

    return run


@pytest.mark.parametrize(
    ("policy", "probabilities", "expected", "exits"),
    [
        ("avg1", [0.3, 0.99, 0.98, 0.97], 0.98, True),  # golden deer_exit_avg1
        ("avg2", [0.3, 0.99, 0.98, 0.97], 0.9799659852139534, True),  # golden deer_exit_avg2
        ("avg1", [0.99, 0.99, 0.6, 0.99], 0.86, False),  # golden deer_continue_avg1
        ("avg2", [0.99, 0.99, 0.6, 0.99], 0.8378003674967538, False),  # golden deer_continue_avg2
    ],
)
def test_golden_confidence(policy, probabilities, expected, exits):
    confidence = answer_confidence(probabilities, policy)
    assert confidence == pytest.approx(expected, rel=1e-12)
    assert (confidence > Deer().threshold) == exits


@pytest.mark.parametrize("policy", ["avg1", "avg2"])
def test_a_trial_of_one_token_is_never_confident(policy):
    assert answer_confidence([], policy) == 0
    assert answer_confidence([1.0], policy) == 0


def test_a_token_without_probability_is_no_error():
    # exp(log(1e-10) / 1)
    assert answer_confidence([1.0, 0.0], "avg2") == pytest.approx(1e-10)


class Pieces:
    """A tokenizer whose tokens are these texts."""

    def __init__(self, *texts):
        self.texts = texts

    def decode(self, ids):
        return "".join(self.texts[index] for index in ids)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["{", "20", "4", "}\n", "So"], 4),
        (["{", "20", "4", "}", "\n", "So"], 5),  # two tokens make the end
        (["{", "2", "}", " and"], 4),  # a bare brace may go on: \frac{1}{2}
        (["{\\frac{", "1", "}{", "2", "}}", "x"], 5),
        (["{(", "1", ",", "2", ")}.", "x"], 5),
        (["{", "1"], 2),
    ],
)
def test_a_trial_is_read_up_to_the_end_of_its_box(texts, expected):
    assert box_length(Pieces(*texts), range(len(texts))) == expected


def test_a_confident_trial_ends_thinking_before_the_wait_and_is_thrown_away(decode_with_deer, words):
    texts = [[FILLER] * 4 + words["wait"], [TRIED] * 3, [ANSWER, 1]]
    engine, completion = decode_with_deer(texts, [SURE])
    assert completion.token_ids == [*[FILLER] * 4, *words["end"], ANSWER, 1]
    # all but "</think>" was sampled: 4 and "Wait", three of the trial, answer 2; one token was put in
    assert completion.num_generated_tokens == 4 + 1 + 3 + 2 + 1
    assert not completion.is_truncated
    thought, trial, answer = engine.asked(PROMPT)
    assert thought.max_new_tokens == 90
    assert thought.stop_token_ids == {*words["wait"], *words["end"]}
    assert trial.prompt_ids == (PROMPT, *[FILLER] * 4, *words["trial"])
    assert trial.max_new_tokens == 3
    assert answer.prompt_ids == (PROMPT, *[FILLER] * 4, *words["end"])
    assert answer.max_new_tokens == 100 - 5
    assert [call["greedy"] for call in engine.calls] == [False, True, False]


def test_an_unsure_trial_leaves_the_thinking_as_it_would_have_been(decode_with_deer, words):
    texts = [[FILLER] * 4 + words["wait"], [TRIED] * 3, [FILLER] * 6 + words["end"], [ANSWER, 1]]
    engine, completion = decode_with_deer(texts, [UNSURE])
    assert completion.token_ids == [*[FILLER] * 4, *words["wait"], *[FILLER] * 6, *words["end"], ANSWER, 1]
    assert completion.num_generated_tokens == len(completion.token_ids) + 3
    assert engine.asked(PROMPT)[2].prompt_ids == (PROMPT, *[FILLER] * 4, *words["wait"])
    assert engine.asked(PROMPT)[2].max_new_tokens == 90 - 5


def test_after_the_last_trial_thinking_goes_on_undisturbed(decode_with_deer, words):
    wait = words["wait"]
    texts = [[FILLER, *wait], [TRIED] * 3, [FILLER, *wait, *wait, *words["end"]], [ANSWER, 1]]
    engine, completion = decode_with_deer(texts, [UNSURE], max_trials=1)
    assert completion.token_ids == [FILLER, *wait, FILLER, *wait, *wait, *words["end"], ANSWER, 1]
    assert engine.asked(PROMPT)[2].stop_token_ids == set(words["end"])


def test_the_answer_is_forced_where_thinking_has_used_its_share(decode_with_deer, words):
    _, completion = decode_with_deer([[FILLER] * 200, [ANSWER] * 200])
    assert completion.token_ids == [*[FILLER] * 90, *words["end"], *[ANSWER] * 9]
    assert completion.is_truncated
    assert completion.num_generated_tokens == 100
    # a "Wait" as the last token of the share is kept, and nothing more can be thought
    _, completion = decode_with_deer([[FILLER] * 89 + words["wait"], [TRIED] * 3, [ANSWER, 1]], [UNSURE])
    assert completion.token_ids == [*[FILLER] * 89, *words["wait"], *words["end"], ANSWER, 1]


def test_the_threshold_itself_is_not_enough(decode_with_deer, words):
    texts = [[FILLER] * 4 + words["wait"], [TRIED] * 3, [FILLER] * 6 + words["end"], [ANSWER, 1]]
    _, completion = decode_with_deer(texts, [[0.0, 0.5, 0.5]], threshold=0.5)
    assert words["wait"][0] in completion.token_ids


def test_eos_within_thinking_ends_the_completion(decode_with_deer):
    engine, completion = decode_with_deer([[FILLER, FILLER, 1]])
    assert (completion.token_ids, completion.num_generated_tokens) == ([FILLER, FILLER, 1], 3)
    assert not completion.is_truncated
    assert len(engine.calls) == 1


def test_what_follows_the_box_does_not_count(decode_with_deer, encode, words):
    # "12" and "}" close nothing by themselves; ". " after the brace does, and "Wait" is beyond it
    said = encode("12}. Wait, ")
    for probabilities, is_confident in (([0.1, 0.99, 0.98, 0.0], True), ([0.1, 0.99, 0.0, 0.99], False)):
        texts = [[FILLER, *words["wait"]], said, *([] if is_confident else [words["end"]]), [ANSWER, 1]]
        _, completion = decode_with_deer(texts, [probabilities], max_trial_tokens=4)
        assert (words["wait"][0] in completion.token_ids) != is_confident


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"threshold": 1.5}, "threshold.* 1.5"),
        ({"policy": "avg3"}, "policy.* 'avg3'"),
        ({"think_share": 1.0}, "think_share is 1.0"),
        ({"max_trial_tokens": 1}, "max_trial_tokens.* 1"),
        ({"boundary": "Attends"}, "boundary is 'Attends'"),
        ({"trial": "\n**Final Answer**\n\\boxed"}, "trial is "),
        ({"max_trial_tokens": 8}, "think_share is 0.9"),
        ({"end_thinking": " So the " * 5}, "think_share is 0.9"),
    ],
)
def test_parameters_that_cannot_be_followed_are_named(decode_with_deer, parameters, named):
    with pytest.raises(ValueError, match=named):
        decode_with_deer([], **parameters)


def test_the_gym_model_leaves_early_where_it_is_sure(tokenizer, problems, words):
    engine = TransformersEngine.from_pretrained(str(CHECKPOINT), batch_size=64)
    prompts = tokenizer.apply_chat_template(
        list(problems["prompt"])[:24], add_generation_prompt=True, return_dict=False
    )
    settings = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=256)
    plain = DecodingStrategy().complete(engine, prompts, range(24), settings)
    strategy = Deer(trial=TRIAL, end_thinking=f"{TRIAL}is ", max_trial_tokens=4, boundary=WAIT)
    early = strategy.complete(engine, prompts, range(24), settings)
    mean_before, mean_after = (math.fsum(len(c.token_ids) for c in run) / 24 for run in (plain, early))
    assert mean_after < 0.9 * mean_before
    wait, end = words["wait"][0], words["end"][0]
    for before, after in zip(plain, early, strict=True):
        # up to its first "Wait" a completion is the plain one of the same seed
        first = before.token_ids.index(wait) if wait in before.token_ids else before.token_ids.index(end)
        assert after.token_ids[:first] == before.token_ids[:first]
        assert after.num_generated_tokens >= len(after.token_ids)
