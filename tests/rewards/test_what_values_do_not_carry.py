"""Words, names and signs beside the numbers of two answers: where they differ, so do the answers."""

import pytest

from leash_trl.rewards.grader.answer import stated_answer
from leash_trl.rewards.grader.equality import are_equal
from leash_trl.rewards.grader.grading import grade, quick_verdict
from leash_trl.rewards.grader.words import words_verdict


def is_correct(answer, gold):
    return grade([f"\\boxed{{{answer}}}"], [gold])[0].is_correct


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("15 boys", "15 girls", False),
        ("15", "15 girls", None),
        ("There are 15 girls in the class", "15 girls", None),
        (r"15\text{ girl}", r"15\text{ girls}", None),
        (r"15\text{ yrs older}", r"15\text{ years older}", None),
        (r"15\text{ L}", r"15\text{ liters}", None),
        (r"15\text{ W}", r"15\text{ J}", False),
        (r"15\text{ km}", r"15\text{ miles}", None),  # units decide
        (r"\text{Team A by }15", r"\text{Team B by }15", False),
        (r"15^\circ\text{C}", r"15^\circ\text{F}", False),
        (r"15\text{ p.m.}", r"15\text{ a.m.}", False),
        (r"15\text{ words per hour}", r"15\text{ words per minute}", False),
        ("15 (fifteen) boys", "15 boys", None),
        ("the largest is 15", "maximum 15", None),  # a synonym
        # numbers with their names
        ("2 boys and 3 girls", "3 girls and 2 boys", True),
        ("2 boys and 3 girls", "2 girls and 3 boys", False),
        ("boys: 2, girls: 3", "2 boys, 3 girls", True),
        ("2 (max), 3 (min)", "3 (max), 2 (min)", False),
        (r"\text{Row R: }2, \text{Row S: }3", r"\text{Row R: }3, \text{Row S: }2", False),
        ("2, 3", "2 boys, 3 girls", None),
        ("3 to 2", "2 to 3", False),
        ("2 and 3, respectively", "3 and 2, respectively", False),
        ("2 and 3", "3 and 2, respectively", None),
        ("red and blue, respectively", "blue and red, respectively", None),  # without a number
    ],
)
def test_words_contradict_words_and_bind_the_numbers_beside_them(answer, gold, expected):
    assert words_verdict(answer, gold) is expected
    assert words_verdict(gold, answer) is expected


EQUAL = {  # answer and gold, in either order
    # congruences, dots, triangles, permutations
    r"x \equiv 14 \pmod{11}": r"x \equiv 3 \pmod{11}",
    "3 (mod 11)": r"x \equiv 3 \pmod{11}",
    r"x \equiv 4, 3 \pmod{11}": r"x \equiv 3, 4 \pmod{11}",
    r"a \equiv b \pmod{m}": r"a \equiv b \pmod m",
    r"2, 4, \dots, 2m": r"2, 4, \ldots, 2m",
    "(4 2 7)": r"(2\ 7\ 4)",
    "(5 6)(1 3)": "(3 1)(5 6)",
    # names and ratios
    r"a=4, b=9 \text{ or } a=9, b=4": r"a=9, b=4 \text{ or } a=4, b=9",
    "(4, 9), (9, 4)": r"a=9, b=4 \text{ or } a=4, b=9",
    "a = 4, a = 9": "4, 9",
    "h(1)=3, h(2)=5": "h(2)=5, h(1)=3",
    "K(4,9), L(1,2)": "L(1,2), K(4,9)",
    "h(1)=3": "3",
    "h(x)=3": "y=3",
    "x_1=3, x_2=4": "x=3, x=4",
    r"\angle K=30^\circ": r"30^\circ",
    "2:3:7": "4:6:14",
}
DIFFERENT = {
    # congruences, dots, triangles, permutations
    r"x \equiv 3 \pmod{12}": r"x \equiv 3 \pmod{11}",
    "x = 3": r"x \equiv 3 \pmod{11}",
    r"a \equiv b \pmod k": r"a \equiv b \pmod m",
    r"2, 6, \ldots, 2m": r"2, 4, \ldots, 2m",
    r"4, 2, \ldots, 2m": r"2, 4, \ldots, 2m",
    r"2, 4, 2m": r"2, 4, \ldots, 2m",
    r"\triangle ABD": r"\triangle ADB",
    "(4 7 2)": r"(2\ 7\ 4)",
    "(1 3)": "(5 6)(1 3)",
    # names and ratios
    r"a=4, b=4 \text{ or } a=9, b=9": r"a=9, b=4 \text{ or } a=4, b=9",
    "4, 9": r"a=9, b=4 \text{ or } a=4, b=9",
    "h(1)=5, h(2)=3": "h(2)=5, h(1)=3",
    "K(1,2), L(4,9)": "L(1,2), K(4,9)",
    "h(1)=3": "h(2)=3",
    "x=3": "y=3",
    r"\angle K=30^\circ": r"\angle L=30^\circ",
    "2:7:3": "2:3:7",
}


SAME_WORDS = [  # answer and gold, in either order
    # units and multipliers
    (r"7\text{ ounces}", r"7\text{ oz}"),
    (r"7\text{ more ounces}", r"7\text{ oz more}"),
    (r"7\text{ kilos of rice}", r"7\text{ kg of rice}"),
    (r"7\text{ extra pounds}", r"7\text{ lbs}"),
    (r"7\text{ bucks}", r"\$7"),
    (r"7\text{ gal}", r"7\text{ gallons of milk}"),
    (r"2\text{ gallons}", r"8\text{ quarts}"),
    (r"7\text{ mpg}", r"7\text{ miles per gallon}"),
    (r"700\text{ rpm}", r"700\text{ revolutions per minute}"),
    (r"70\text{ wpm}", r"70\text{ words per minute}"),
    ("an average of 70 mph", r"70\text{ miles per hour}"),
    (r"\$7\text{ million}", r"7\text{ million dollars}"),
    (r"\$7{,}000{,}000", r"7\text{ million dollars}"),
    (r"\$7{,}000", r"7\text{ thousand dollars}"),
    (r"7\text{ dozen rolls}", r"7\text{ dozen}"),
    (r"7\text{ dozen}", r"84\text{ rolls}"),
    (r"7\text{ hrs longer}", r"7\text{ hours longer}"),
    (r"7\text{ mos.}", r"7\text{ months}"),
    (r"70\text{ pts}", r"70\text{ points}"),
    (r"7\text{ pcs}", r"7\text{ pieces}"),
    (r"7\text{ tbsp}", r"7\text{ tablespoons}"),
    # plurals, spellings and tenses
    (r"7\text{ shelves}", r"7\text{ shelf}"),
    (r"7\text{ indices}", r"7\text{ index}"),
    (r"7\text{ matrices}", r"7\text{ matrix}"),
    (r"7\text{ cherries}", r"7\text{ cherry}"),
    (r"7\text{ pies}", r"7\text{ pie}"),
    (r"7\text{ teeth}", r"7\text{ tooth}"),
    (r"7\text{ women}", r"7\text{ woman}"),
    (r"7\text{ neighbours}", r"7\text{ neighbors}"),
    (r"7\text{ theatres}", r"7\text{ theater}"),
    (r"7\text{ organised groups}", r"7\text{ groups organized}"),
    (r"7\text{ cancelled trains}", r"7\text{ canceled trains}"),
    # comparisons
    (r"7\text{ additional cups}", r"7\text{ extra cups}"),
    (r"7\text{ fewer marbles}", r"7\text{ less marbles}"),
    (r"\text{mean of }7", r"\text{average: }7"),
    (r"7\%\text{ lower}", r"7\%\text{ decrease}"),
    # dimensions and times
    (r"7\text{ days later}", r"\text{after }7\text{ days}"),
    (r"7\text{ m tall}", r"7\text{ m high}"),
    (r"7\text{ years old}", r"7\text{ years of age}"),
    (r"7\text{ in the morning}", r"7\text{ a.m.}"),
    (r"12\text{ noon}", r"12\text{ p.m.}"),
    (r"7\text{ times weekly}", r"7\text{ times per week}"),
    # ways
    (r"70\text{ permutations}", r"70\text{ ways}"),
    # a subject is no unit
    (r"\text{Nora is }7", r"7\text{ years old}"),
    (r"\text{She needs }7", r"7\text{ crayons}"),
    (r"7\text{ of them}", r"7\text{ crayons}"),
    # other forms of the kinds above
    (r"\text{maximum: }7, \text{ minimum: }2", r"\text{max = 7, min = 2}"),
    (r"\text{James is }7", r"7\text{ years old}"),
    (r"7\text{ planned trips}", r"7\text{ trips planned}"),
    (r"\text{Nora's age is }7", r"\text{Nora is }7"),
    (r"\text{So Nora has }7", r"7\text{ crayons}"),
    (r"\$7\text{ million}", r"\$7{,}000{,}000"),
]
OTHER_WORDS = [
    # units and multipliers
    (r"7\text{ mpg}", r"7\text{ mph}"),
    (r"7\text{ million dollars}", r"7\text{ million euros}"),
    (r"7\text{ dozen rolls}", r"7\text{ dozen eggs}"),
    # abbreviations in the plural
    (r"7\text{ mos.}", r"7\text{ mins}"),
    # plurals
    (r"7\text{ men}", r"7\text{ women}"),
    (r"7\text{ wolves}", r"7\text{ leaves}"),
    # comparisons
    (r"7\text{ more marbles}", r"7\text{ fewer marbles}"),
    (r"7\%\text{ increase}", r"7\%\text{ decrease}"),
    (r"7\%\text{ higher}", r"7\%\text{ lower}"),
    (r"\$7\text{ profit}", r"\$7\text{ loss}"),
    # times and dimensions
    (r"7\text{ a.m.}", r"7\text{ in the afternoon}"),
    (r"12\text{ noon}", r"12\text{ midnight}"),
    (r"7\text{ days before}", r"7\text{ days after}"),
    (r"7\text{ times weekly}", r"7\text{ times daily}"),
    (r"7\text{ m tall}", r"7\text{ m wide}"),
    # subjects
    (r"\text{Nora is }7", r"\text{Omar is }7"),
    (r"\text{Nora has 7 crayons}", r"7\text{ pens}"),
    (r"\text{Profit is }7", r"7\text{ loss}"),
    (r"\text{Boys: }7", r"7\text{ girls}"),
    ("the time for Nora is 7", "the time for Omar is 7"),
    (r"\text{the number of Apples is }7", r"7\text{ pears}"),
    (r"\text{the Red team by }7", r"7\text{ blue}"),
    # names and units
    (r"7\text{ left}", r"7\text{ right}"),
    (r"\$7\text{ million}", r"\$7\text{ billion}"),
    (r"\$7\text{ million}", r"\$7"),
]


@pytest.mark.parametrize(("answer", "gold"), [*EQUAL.items(), *SAME_WORDS])
def test_words_of_one_meaning_do_not_contradict_each_other(answer, gold):
    assert is_correct(answer, gold) is True
    assert is_correct(gold, answer) is True


@pytest.mark.parametrize(("answer", "gold"), [*DIFFERENT.items(), *OTHER_WORDS])
def test_words_of_another_meaning_contradict_each_other(answer, gold):
    assert is_correct(answer, gold) is False
    assert is_correct(gold, answer) is False


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        (r"36\text{ km/h}", r"10\text{ m/s}", True),
        (r"36\text{ kilometers per hour}", r"36\text{ km/h}", True),
        (r"36\text{ m/s}", r"36\text{ km/h}", False),
        (r"36\text{ m}", r"36\text{ m/s}", False),
        (r"36\text{ months}", r"3\text{ years}", True),
        (r"36\text{ months}", r"36\text{ years}", False),
        (r"36\text{ months older}", r"36\text{ years older}", False),
        (r"\$36\text{ per pound}", r"36\text{ dollars per pound}", True),
        (r"36\text{ per hour}", r"36\text{ per minute}", False),
        (r"360\text{ mL}", r"0.36\text{ L}", True),
        (r"36\text{ in total}", r"36\text{ feet}", True),  # "in" is no inch here
    ],
)
def test_units_that_differ_are_converted_or_differ(answer, gold, expected):
    assert quick_verdict(stated_answer(answer), stated_answer(gold)) is expected
    assert quick_verdict(stated_answer(gold), stated_answer(answer)) is expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("0<x<4", None), ("(0,4)", None), (r"\{0,4\}", None), ("0,4", False), ("4", False), ("0:04", False)],
)
def test_a_set_of_reals_may_equal_an_interval_or_a_set_but_no_number_and_no_list(answer, expected):
    assert are_equal(answer, r"x \in (0,4) \cup (0,1)") is expected
    assert are_equal(r"x \in (0,4) \cup (0,1)", answer) is expected


def test_a_letter_behind_the_end_of_a_row_is_no_command():
    r"""In `1\\x+y`, the second backslash belongs to the end of the row, and `\x` is no command that goes unread."""
    answer = r"\begin{pmatrix}1\\x+y\end{pmatrix}"
    assert is_correct(answer, answer.replace("x+y", "y+x")) is True
