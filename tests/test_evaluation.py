"""Sampling and summaries."""

import numpy as np
import pytest

from leash_trl.evaluation.evaluate import GradedSamples, evaluate, summarize
from leash_trl.evaluation.intervals import mean_share


def test_summary_by_hand():
    is_correct = np.array([[True, True], [True, False]])
    lengths = np.array([[10, 20], [30, 100]])
    summary = summarize(GradedSamples(is_correct, lengths, lengths == 100), target_length=20)
    assert summary.accuracy == 0.75
    assert summary.mean_tokens == 40
    assert summary.p95_tokens == pytest.approx(30 + 0.85 * 70)
    assert summary.satisfaction_rate == 0.5
    assert summary.truncated_rate == 0.25
    shares = mean_share(np.array([1.0, 0.5]))
    assert summary.accuracy_interval == (shares.low, shares.high)


def test_an_accuracy_of_all_or_nothing_has_an_interval():
    for is_right in (False, True):
        samples = GradedSamples(np.full((30, 4), is_right), np.ones((30, 4)), np.zeros((30, 4), dtype=bool))
        low, high = summarize(samples).accuracy_interval
        assert 0.05 < high - low < 0.2


def test_interval_is_over_problems_not_completions():
    # ten problems, all or nothing: a thousand completions each must not narrow the interval
    is_correct = np.repeat(np.arange(10)[:, None] < 5, 1000, axis=1)
    samples = GradedSamples(is_correct, np.ones((10, 1000)), np.zeros((10, 1000), dtype=bool))
    low, high = summarize(samples).accuracy_interval
    assert high - low > 0.4


def test_completions_are_counted_up_to_the_end_token_and_repeat_with_the_seed(tiny_model_path, problems):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path)
    first, again = (evaluate(model, tokenizer, problems.select(range(3)), 40, 60, seed=3, batch_size=32) for _ in "ab")
    assert first.lengths.shape == (3, 40)
    assert (first.lengths[first.is_truncated] == 60).all()
    assert 0 < first.is_truncated.sum() < 120
    assert first.lengths.max() == 60
    assert (first.lengths == again.lengths).all()
