"""What all decoding strategies share: scripts side by side, seeds of their steps, texts of the vocabulary."""

from dataclasses import dataclass

import pytest
from scripted_engine import ScriptedEngine

from leash_trl.engines.chat_template import prompt_ids
from leash_trl.engines.engine import SamplingSettings
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.evaluation.decoding import (
    Ask,
    Decoded,
    DecodingStrategy,
    Deer,
    ids_of_text,
    ids_with_word,
    make_strategy,
    step_seed,
)


@dataclass(frozen=True)
class Walk(DecodingStrategy):
    """Asks once for each kind (trial or not) of a prompt's first token, and returns the last tokens it was sent."""

    kinds: dict[int, list[bool]]

    def script(self, tokenizer, max_new_tokens):
        def script(prompt_ids):
            for is_trial in self.kinds[prompt_ids[0]]:
                generation = yield Ask(prompt_ids, 10, is_trial=is_trial)
            return Decoded(generation.token_ids, 0, False)

        return script


def walked(engine, kinds, seeds):
    return Walk(kinds).complete(engine, [[row] for row in kinds], seeds, SamplingSettings(max_new_tokens=10))


def test_rows_drop_out_as_they_end_and_keep_their_order(tokenizer):
    engine = ScriptedEngine(tokenizer, {6: [[11, 1], [12, 1], [13, 1]], 7: [[14, 1]], 8: [[15, 1], [16, 1]]})
    decoded = walked(engine, {6: [False] * 3, 7: [False], 8: [False] * 2}, [0, 1, 2])
    assert [row.token_ids[0] for row in decoded] == [13, 14, 16]
    assert [[r.prompt_ids[0] for r in call["requests"]] for call in engine.calls] == [[6, 7, 8], [6, 8], [6]]
    assert [call["is_continuation"] for call in engine.calls] == [False, True, True]


def test_trials_are_greedy_and_a_call_of_their_own(tokenizer):
    texts = {6: [[11, 1], [12, 1]], 7: [[13, 1], [14, 1]]}
    engine = ScriptedEngine(tokenizer, texts, {6: [[0.5, 0.5]]})
    decoded = walked(engine, {6: [True, False], 7: [False, False]}, [0, 1])
    assert [row.token_ids[0] for row in decoded] == [12, 14]
    kinds = [(call["greedy"], [request.prompt_ids[0] for request in call["requests"]]) for call in engine.calls]
    # the rows are in their order again when both sample
    assert kinds == [(False, [7]), (True, [6]), (False, [6, 7])]


def test_each_step_has_a_seed_of_its_own_that_never_changes(tokenizer):
    engine = ScriptedEngine(tokenizer, {6: [[11, 1]] * 2, 7: [[12, 1]] * 2})
    walked(engine, {6: [False] * 2, 7: [False] * 2}, [3, 4])
    assert [request.seed for request in engine.asked(6)] == [3, step_seed(3, 1)]
    # int.from_bytes(blake2b(b"3:1", digest_size=8).digest(), "big") % 2**63
    assert step_seed(3, 1) == 5773548458216236088


def test_the_gym_thinks_the_same_thoughts_until_deer_ends_them_early(problems):
    engine, settings = TransformersEngine.from_pretrained("gym", batch_size=64), SamplingSettings(1.0, 1.0, 0, 256)
    prompts = prompt_ids(engine.tokenizer, list(problems["prompt"])[:16])
    deer = Deer(trial=" So the answer ", max_trial_tokens=4, end_thinking="</think>", boundary="Wait,")
    plain, early = (each.complete(engine, prompts, range(16), settings) for each in (DecodingStrategy(), deer))
    assert sum(len(one.token_ids) for one in early) < 0.9 * sum(len(one.token_ids) for one in plain)
    acts_at = {*engine.tokenizer.encode("</think> Wait, ")}
    for before, after in zip(plain, early, strict=True):
        first = [token in acts_at for token in before.token_ids].index(True)
        assert after.token_ids[:first] == before.token_ids[:first]


def test_a_strategy_is_made_again_from_its_record():
    assert make_strategy() == DecodingStrategy()
    recorded = make_strategy("deer", threshold=0.9).to_dict()
    assert recorded["threshold"] == 0.9
    assert make_strategy(**recorded) == make_strategy("deer", threshold=0.9)


@pytest.mark.parametrize(
    ("name", "parameters", "named"),
    [
        ("beam", {}, "'beam'"),
        ("budget_forcing", {"thresold": 1}, "thresold=1"),
        ("plain", {"width": None}, "width=None"),
        ("budget_forcing", {"num_ignore": 1.5}, "num_ignore=1.5"),
        ("budget_forcing", {"counts_wait": 1}, "counts_wait=1"),
        ("budget_forcing", {"num_ignore": True}, "num_ignore=True"),
    ],
)
def test_a_strategy_or_parameter_that_is_not_there_is_named(name, parameters, named):
    with pytest.raises(ValueError, match=named):
        make_strategy(name, **parameters)


def test_texts_become_ids_and_a_word_is_found_with_any_space_around_it(tokenizer):
    assert tokenizer.decode(ids_of_text(tokenizer, " So the answer is ", "trial")) == " So the answer is "
    assert ids_with_word(tokenizer, "</think>", "stop_thinking") == {tokenizer.convert_tokens_to_ids("</think>")}
    assert {tokenizer.decode([index]) for index in ids_with_word(tokenizer, "the", "boundary")} == {"the "}
    # "recheck" and "double-check" only contain the word
    assert {tokenizer.decode([index]) for index in ids_with_word(tokenizer, "check", "boundary")} == {"check "}
