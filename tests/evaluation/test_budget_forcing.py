"""s1's budget forcing."""

import pytest
from scripted_engine import ScriptedEngine

from leash_trl.engines.engine import Generation, SamplingSettings
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.evaluation.decoding import BudgetForcing, DecodingStrategy
from leash_trl.gym import CHECKPOINT


PROMPT, FILLER, ANSWER = 5, 10, 20  # tokens that mean nothing here
FINAL = " So the answer is "  # four tokens
WAIT = " Wait, "  # one token; the gym cannot write "Wait"


class AnsweringEngine(ScriptedEngine):
    """Takes the scripted texts for thinking, which has a stop token; the answer is one token and EOS."""

    def _generation(self, request, with_probabilities):
        if request.stop_token_ids:
            return super()._generation(request, with_probabilities)
        return Generation([ANSWER, *self.eos_token_ids], "eos")


@pytest.fixture
def force(tokenizer):
    """Factory: engine and completion of one row whose thinking would end by itself after so many tokens each time."""

    def run(segments, last="</think>", limit=40000, **parameters):
        ends = tokenizer.convert_tokens_to_ids(last)
        engine = AnsweringEngine(tokenizer, {PROMPT: [[FILLER] * length + [ends] for length in segments]})
        strategy = BudgetForcing(**{"final_answer": FINAL, "wait": WAIT, **parameters})
        return engine, strategy.complete(engine, [[PROMPT]], [1], SamplingSettings(max_new_tokens=limit))[0]

    return run


@pytest.fixture
def encode(tokenizer):
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("natural", "kept", "is_forced"), [(400, 400, False), (1000, 1000, False), (2500, 1000, True)]
)
def test_golden_s1_budget_max(force, encode, natural, kept, is_forced):
    _, completion = force([natural], max_thinking_tokens=1000)
    put_in = encode("</think>" + FINAL) if is_forced else encode("</think>")
    assert completion.token_ids == [FILLER] * kept + put_in + [ANSWER, 1]
    assert not completion.is_truncated


def test_golden_s1_budget_min(force, encode):
    _, completion = force([500, 700, 300], max_thinking_tokens=32000, num_ignore=1)
    # 500 + 700 = 1200 tokens of thinking, one "Wait"; the third segment is never asked for
    assert completion.token_ids == [
        *[FILLER] * 500,
        *encode(WAIT),
        *[FILLER] * 700,
        *encode("</think>"),
        ANSWER,
        1,
    ]


def test_golden_s1_ignore_stops_at_budget(force, encode):
    _, completion = force([600, 300, 400], max_thinking_tokens=1000, num_ignore=2)
    # 600 + 300 leaves 100 of the third segment: thinking 1000, two "Wait", cut
    wait = encode(WAIT)
    thinking = [*[FILLER] * 600, *wait, *[FILLER] * 300, *wait, *[FILLER] * 100]
    assert completion.token_ids == [*thinking, *encode("</think>" + FINAL), ANSWER, 1]


def test_with_counts_wait_the_words_put_in_are_part_of_the_budget(force, encode):
    _, completion = force([600, 300, 400], max_thinking_tokens=1000, num_ignore=2, counts_wait=True)
    # 1000 - 600 - 1 - 300 - 1 = 98 of the third segment: 1000 in all, as when the whole is cut afterwards
    wait = encode(WAIT)
    thinking = [*[FILLER] * 600, *wait, *[FILLER] * 300, *wait, *[FILLER] * 98]
    assert len(thinking) == 1000
    assert completion.token_ids == [*thinking, *encode("</think>" + FINAL), ANSWER, 1]


def test_everything_sampled_is_counted_once(force):
    # 400 and the model's own end, which stays; answer 2
    assert force([400], max_thinking_tokens=1000)[1].num_generated_tokens == 400 + 1 + 2
    # 1001 sampled, one beyond the budget; five tokens put in; answer 2
    assert force([2500], max_thinking_tokens=1000)[1].num_generated_tokens == 1001 + 5 + 2
    # 500, its dropped end, "Wait", 700 and its own end, answer 2
    completion = force([500, 700], max_thinking_tokens=32000, num_ignore=1)[1]
    assert completion.num_generated_tokens == 500 + 1 + 1 + 700 + 1 + 2


def test_thinking_that_has_used_up_its_budget_is_not_made_to_go_on(force, encode):
    _, completion = force([1000], max_thinking_tokens=1000, num_ignore=3)
    assert completion.token_ids == [*[FILLER] * 1000, *encode("</think>"), ANSWER, 1]
    # one token is left, which "Wait" would take
    _, completion = force([999], max_thinking_tokens=1000, num_ignore=3, counts_wait=True)
    assert completion.token_ids == [*[FILLER] * 999, *encode("</think>"), ANSWER, 1]


def test_eos_ends_thinking_as_the_end_of_thinking_does(force, encode):
    _, completion = force([30, 20], last="<|end|>", max_thinking_tokens=1000, num_ignore=1)
    assert completion.token_ids == [*[FILLER] * 30, *encode(WAIT), *[FILLER] * 20, *encode("</think>"), ANSWER, 1]
    assert completion.num_generated_tokens == 30 + 1 + 1 + 20 + 1 + 1 + 2


def test_each_step_goes_on_from_all_that_was_said(force, encode):
    engine, completion = force([5, 7], max_thinking_tokens=50, num_ignore=1, limit=100)
    first, second, answer = engine.asked(PROMPT)
    end = encode("</think>")[0]
    assert (first.prompt_ids, first.max_new_tokens, first.stop_token_ids) == ((PROMPT,), 51, {end})
    assert second.prompt_ids == (PROMPT, *[FILLER] * 5, *encode(WAIT))
    assert second.max_new_tokens == 50 - 5 + 1
    assert answer.prompt_ids == (PROMPT, *completion.token_ids[:-2])
    assert answer.max_new_tokens == 100 - (5 + 1 + 7 + 1)
    assert answer.stop_token_ids == frozenset()


def test_a_budget_that_leaves_no_answer_is_an_error(force):
    # thinking 94, </think> 1, final answer 4, answer at least 1
    force([1], max_thinking_tokens=94, limit=100)
    with pytest.raises(ValueError, match="max_thinking_tokens is 95"):
        force([1], max_thinking_tokens=95, limit=100)
    with pytest.raises(ValueError, match="max_thinking_tokens is 94"):
        force([1], max_thinking_tokens=94, num_ignore=1, limit=100)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"max_thinking_tokens": 0}, "max_thinking_tokens is 0"),
        ({"stop_thinking": " So the "}, "stop_thinking is ' So the '"),
        ({"wait": "Attends", "num_ignore": 1}, "wait is 'Attends'"),
    ],
)
def test_parameters_that_cannot_be_followed_are_named(force, parameters, named):
    with pytest.raises(ValueError, match=named):
        force([1], **parameters)


@pytest.fixture(scope="module")
def gym_engine():
    return TransformersEngine.from_pretrained(str(CHECKPOINT), batch_size=64)


@pytest.fixture(scope="module")
def gym_prompts(gym_engine, problems):
    prompts = list(problems["prompt"])[:16]
    return gym_engine.tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)


def test_the_gym_model_thinks_no_longer_than_it_may(gym_engine, gym_prompts, encode):
    settings = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=200)
    plain = DecodingStrategy().complete(gym_engine, gym_prompts, range(16), settings)
    strategy = BudgetForcing(max_thinking_tokens=40, final_answer=FINAL)
    forced = strategy.complete(gym_engine, gym_prompts, range(16), settings)
    end = encode("</think>")[0]
    natural = [completion.token_ids.index(end) for completion in plain]
    assert min(natural) <= 40 < max(natural)
    for before, after, length in zip(plain, forced, natural, strict=True):
        kept = min(length, 40)
        # the same seed thinks the same thoughts up to the limit
        assert after.token_ids[:kept] == before.token_ids[:kept]
        put_in = encode("</think>" + FINAL) if length > 40 else [end]
        assert after.token_ids[kept : kept + len(put_in)] == put_in
        assert after.token_ids[-1] == gym_engine.tokenizer.eos_token_id
    assert forced == strategy.complete(gym_engine, gym_prompts, range(16), settings)
