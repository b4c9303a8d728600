"""Metrics of sampled completions, by hand and by their properties."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.evaluation.metrics import (
    RIGHT,
    accuracy_within_budgets,
    avg_at_k,
    majority,
    majority_at_k,
    mean_tokens_where,
    pass_at_k,
    shortest_m_at_k,
    shortest_m_winner,
    token_budgets,
    votes,
)


CORRECT = np.array([[True, True, False, False], [False, False, False, True], [False] * 4])


@st.composite
def problems(draw):
    """P problems, k completions each, no two of a problem equally long: answers, correctness, lengths."""
    num_problems, num_samples = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    wrong = st.tuples(st.sampled_from(["7", "8", None]), st.just(False))
    cells = st.lists(st.one_of(wrong, st.just(("1", True))), min_size=num_samples, max_size=num_samples)
    rows = [draw(cells) for _ in range(num_problems)]
    distinct = st.lists(st.integers(1, 100), min_size=num_samples, max_size=num_samples, unique=True)
    lengths = np.array([draw(distinct) for _ in range(num_problems)])
    answers = [[answer for answer, _ in row] for row in rows]
    return answers, np.array([[right for _, right in row] for row in rows]), lengths


def all_values(answers, is_correct, lengths):
    """Every metric of each problem, `(P, ...)`."""
    num_samples = is_correct.shape[1]
    columns = [avg_at_k(is_correct), majority_at_k(answers, is_correct)]
    for k in range(1, num_samples + 1):
        columns += [pass_at_k(is_correct, k), *shortest_m_at_k(answers, is_correct, lengths, m=k)]
    return np.column_stack([*columns, accuracy_within_budgets(is_correct, lengths, [1, 10, 50, 100])])


def test_avg_at_k_by_hand():
    assert avg_at_k(CORRECT).tolist() == [0.5, 0.25, 0.0]


def test_pass_at_2_by_hand():
    # pairs without a right one among 6: 1 (both wrong), 3, 6
    assert pass_at_k(CORRECT, 2) == pytest.approx([5 / 6, 3 / 6, 0.0])


def test_pass_at_k_is_1_where_every_draw_holds_a_right_completion():
    # four completions, two of them wrong: three drawn cannot all be wrong
    assert pass_at_k(CORRECT, 3).tolist() == [1.0, 0.75, 0.0]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_completion(k):
    shares = [np.mean([any(draw) for draw in combinations(row, k)]) for row in CORRECT]
    assert pass_at_k(CORRECT, k) == pytest.approx(shares)


def test_pass_at_k_of_many_completions_keeps_its_digits():
    is_correct = np.arange(1024)[None] < 1
    # one right among 1024: drawn with probability 512/1024
    assert pass_at_k(is_correct, 512).tolist() == [0.5]


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_refuses_more_than_there_are(k):
    with pytest.raises(ValueError, match=f"k is {k}, but must lie between 1 and the 4"):
        pass_at_k(CORRECT, k)


def test_right_answers_are_one_class_and_wrong_ones_go_by_their_text():
    assert votes(["1/2", "0.5", "$3 x$", "3x", None], [True, True, False, False, False]) == [
        RIGHT,
        RIGHT,
        "3x",
        "3x",
        None,
    ]


def test_a_wrong_answer_that_reads_like_a_right_one_stays_wrong():
    # 1 == True in Python, "True" is a text: neither may join the class of right answers
    assert majority_at_k([["True", "True", "4"]], np.array([[False, False, True]])).tolist() == [0.0]


def test_missing_answers_never_win():
    assert majority(["4", None, None, None]) == {"4"}
    assert majority([None, None]) == set()


def test_majority_by_hand():
    answers = [
        ["4", "4.0", "5", "5", "6"],  # right: 2 votes, as many as "5": a coin
        ["4", "5", "6", None, None],  # three tied, one right
        ["5", "5", "5", "4", "4"],  # the wrong one wins
        ["4", "4", "4.0", "5", "5"],  # the right one wins
        [None] * 5,
    ]
    is_correct = np.array([[1, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 1], [1, 1, 1, 0, 0], [0] * 5], dtype=bool)
    assert majority_at_k(answers, is_correct) == pytest.approx([1 / 2, 1 / 3, 0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        (1, "9"),  # golden short_1_at_5: the first to finish wins
        (3, "9"),  # golden short_3_at_5_tie: one vote each goes to the shortest
        (4, "5"),  # golden short_4_at_5_majority
    ],
)
def test_golden_short_m_at_5(m, expected):
    assert shortest_m_winner(["7", "5", "5", "7", "9"], [900, 1200, 1500, 3000, 100], m) == expected


def test_a_completion_without_an_answer_takes_a_place_among_the_shortest_but_no_vote():
    assert shortest_m_winner([None, "7", "5"], [1, 2, 3], m=2) == "7"
    assert shortest_m_winner([None, "7", "5"], [1, 2, 3], m=1) is None


def test_of_equally_long_completions_the_earlier_is_the_shorter():
    assert shortest_m_winner(["7", "5"], [64, 64], m=1) == "7"


def test_short_m_at_k_by_hand():
    answers = [["7", "5", "5", "7", "9"]]
    is_correct = np.array([[False, True, True, False, False]])
    lengths = np.array([[900, 1200, 1500, 3000, 100]])
    short_3 = shortest_m_at_k(answers, is_correct, lengths, m=3)
    # waits for 1200; 900 + 1200 + 1200 + 1200 + 100
    assert [values.tolist() for values in short_3] == [[0.0], [1200.0], [4600.0]]
    short_4 = shortest_m_at_k(answers, is_correct, lengths, m=4)
    # waits for 1500; 900 + 1200 + 1500 + 1500 + 100
    assert [values.tolist() for values in short_4] == [[1.0], [1500.0], [5200.0]]


@pytest.mark.parametrize("m", [0, 5])
def test_short_m_at_k_refuses_more_than_there_are(m):
    with pytest.raises(ValueError, match=f"m is {m}, but must lie between 1 and the 4"):
        shortest_m_at_k([["1"] * 4] * 3, CORRECT, np.ones((3, 4)), m)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (32768, (1024, 2048, 4096, 8192, 16384, 32768)),
        (30000, (1024, 2048, 4096, 8192, 16384, 30000)),
        (96, (4, 8, 16, 32, 64, 96)),
        (64, (2, 4, 8, 16, 32, 64)),
        (2, (1, 2)),
        (1, (1,)),
    ],
)
def test_budgets_are_doublings_up_to_the_limit(limit, expected):
    assert token_budgets(limit) == expected


def test_budgets_refuse_a_limit_of_nothing():
    with pytest.raises(ValueError, match="limit is 0 tokens"):
        token_budgets(0)


def test_accuracy_within_budgets_by_hand():
    is_correct = np.array([[True, False, True, True]])
    lengths = np.array([[10, 5, 20, 40]])
    # 5: only a wrong one fits; 10 and 20 take in one right one each
    assert accuracy_within_budgets(is_correct, lengths, [5, 10, 20, 39]).tolist() == [[0.0, 0.25, 0.5, 0.5]]


def test_tokens_of_right_completions_are_over_all_problems_together():
    lengths = np.array([[10, 20], [30, 90]])
    is_right = np.array([[True, True], [True, False]])
    assert mean_tokens_where(lengths, is_right) == 20.0  # not (15 + 30) / 2
    assert mean_tokens_where(lengths, np.zeros((2, 2), dtype=bool)) is None


@given(problems())
def test_shares_lie_between_0_and_1(case):
    answers, is_correct, lengths = case
    for values in (
        avg_at_k(is_correct),
        pass_at_k(is_correct, 1),
        majority_at_k(answers, is_correct),
        shortest_m_at_k(answers, is_correct, lengths, 1).is_right,
        accuracy_within_budgets(is_correct, lengths, [1, 50]),
    ):
        assert (values >= 0).all()
        assert (values <= 1).all()


@given(problems(), st.randoms())
def test_the_order_of_completions_does_not_matter(case, random):
    answers, is_correct, lengths = case
    order = random.sample(range(is_correct.shape[1]), is_correct.shape[1])
    shuffled = [[row[i] for i in order] for row in answers]
    assert np.allclose(all_values(shuffled, is_correct[:, order], lengths[:, order]), all_values(*case))


@given(problems(), st.randoms())
def test_the_order_of_problems_goes_through(case, random):
    answers, is_correct, lengths = case
    order = random.sample(range(len(answers)), len(answers))
    moved = all_values([answers[i] for i in order], is_correct[order], lengths[order])
    assert np.array_equal(moved, all_values(*case)[order])


@given(problems())
def test_one_draw_is_avg_and_all_draws_are_any(case):
    _, is_correct, _ = case
    assert pass_at_k(is_correct, 1) == pytest.approx(avg_at_k(is_correct))
    assert pass_at_k(is_correct, is_correct.shape[1]) == pytest.approx(is_correct.any(axis=1).astype(float))


@given(problems())
def test_more_draws_never_hurt(case):
    _, is_correct, _ = case
    chances = np.array([pass_at_k(is_correct, k) for k in range(1, is_correct.shape[1] + 1)])
    assert (np.diff(chances, axis=0) >= 0).all()


@given(problems())
def test_accuracy_within_budgets_rises_to_the_accuracy(case):
    _, is_correct, lengths = case
    within = accuracy_within_budgets(is_correct, lengths, range(0, 101, 10))
    assert (np.diff(within, axis=1) >= 0).all()
    assert within[:, 0].tolist() == [0.0] * len(within)
    assert np.array_equal(within[:, -1], avg_at_k(is_correct))


@given(problems())
def test_waiting_for_all_costs_all_and_waiting_for_one_costs_k_times_the_shortest(case):
    answers, is_correct, lengths = case
    num_samples = lengths.shape[1]
    for_all = shortest_m_at_k(answers, is_correct, lengths, num_samples)
    assert np.array_equal(for_all.total_tokens, lengths.sum(axis=1))
    assert np.array_equal(for_all.waiting_tokens, lengths.max(axis=1))
    for_one = shortest_m_at_k(answers, is_correct, lengths, 1)
    assert np.array_equal(for_one.total_tokens, num_samples * lengths.min(axis=1))
    assert np.array_equal(for_one.is_right, is_correct[np.arange(len(lengths)), lengths.argmin(axis=1)])
