"""Where targets come from: schedule, data set, method."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from leash_trl.length_control.l1 import L1Max
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.targets import row_target
from leash_trl.trainer.prompt_rows import prompt_facts, row_columns, row_of_model
from leash_trl.trainer.questions import question_hash


@pytest.mark.parametrize("good", [46, np.int64(46), torch.tensor(46.0)])  # the last two by Dataset.with_format
def test_a_row_may_have_a_target_of_any_format(good):
    assert row_target({"target_length": good}) == 46


@pytest.mark.parametrize("bad", [0, -3, "46", True, math.inf])
def test_a_row_may_have_no_bad_target(bad):
    with pytest.raises(ValueError, match="target_length="):
        row_target({"target_length": bad})


@pytest.mark.parametrize("row", [{}, {"target_length": None}, {"target_length": math.nan}])
def test_a_row_may_have_no_target(row):
    assert row_target(row) is None


RED = (255, 0, 0)
BLUE = (0, 0, 255)


def picture(color):
    return Image.new("RGB", (2, 3), color)


def png(color):
    buffer = io.BytesIO()
    picture(color).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def conversation(*parts, **columns):
    return {"prompt": [{"content": [*parts] or "2 + 2?", "role": "user"}], **columns}


@pytest.mark.parametrize(
    "row_with",
    [
        lambda color: conversation(images=[picture(color)]),
        lambda color: conversation(image=png(color)),
        lambda color: conversation(images=[f"{color[0]}.png"]),
        lambda color: conversation({"type": "image", "image": picture(color)}, {"type": "text", "text": "2 + 2?"}),
    ],
)
def test_a_question_is_its_text_and_its_pictures(row_with):
    rows = [row_with(RED), row_with(BLUE), row_with(RED)]
    method = L1Max(suffix=" In {n}.")
    red, blue, again = [prompt_facts(row, method, None, None, math.inf).question for row in rows]
    assert red == again
    assert len({red, blue, question_hash(conversation())}) == 3
    assert "In 9." in str(row_of_model(rows[0], method, 9, math.inf)["prompt"])


def test_a_question_asked_with_other_arguments_of_the_template_is_another_question():
    rows = [conversation(chat_template_kwargs={"effort": effort}) for effort in ("low", "high", "low", None)]
    low, high, again, plain = map(question_hash, rows)
    assert low == again
    assert len({low, high, plain}) == 3


@pytest.mark.parametrize(
    "none",
    [{}, {"image": None}, {"images": []}, {"images": None}, {"chat_template_kwargs": {"effort": None}}],
)
def test_without_pictures_a_question_is_its_text_whatever_the_order_of_its_keys(none):
    prompt = [{"role": "user", "content": "2 + 2?"}]
    assert question_hash({"prompt": prompt, **none}) == 1131603105239393652  # saved histories count on it
    assert question_hash(conversation(**none)) == 1131603105239393652


def test_a_schedule_stretches_targets_up_to_the_generation_limit():
    method = L1Max(budget_range=None, suffix=" {n}")
    rows = [{"prompt": "a", "target_length": target} for target in (None, 50, 80, 400)]
    targets = [prompt_facts(row, method, 400.0, 100.0, generation_limit=300).target for row in rows]
    assert targets == [300, 200, 300, 400]
    prompts = [row_of_model(row, method, target, 300)["prompt"] for row, target in zip(rows, targets, strict=True)]
    assert prompts == ["a 300", "a 200", "a 300", "a 400"]


@pytest.mark.parametrize(
    ("row", "method", "is_common"),
    [
        ({"prompt": "a"}, Leash(), True),
        ({"prompt": "a", "target_length": 50}, Leash(), False),
        ({"prompt": "a", "target_length": None}, Leash(), False),  # other rows of the data set have targets
        ({"prompt": "a"}, L1Max(budget_range=(20, 90), suffix=" {n}"), False),
    ],
)
def test_a_prompt_has_the_common_target_unless_data_set_or_method_gives_prompts_others(row, method, is_common):
    assert prompt_facts(row, method, 150.0, 100.0, math.inf).has_common_target == is_common


def test_without_a_schedule_a_target_keeps_its_last_bit():
    # 0.21 * 0.21 / 0.21 is less than 0.21
    assert prompt_facts({"prompt": "a"}, Leash(), 0.21, 0.21, math.inf).target == 0.21


@pytest.mark.parametrize(
    ("row", "value"),
    [({"k": torch.tensor(2)}, 2), ({"k": np.float64("nan")}, None), ({"k": math.nan}, None), ({"k": np.int64(3)}, 3)],
)
def test_a_column_is_read_as_python_has_it_whatever_the_format(row, value):
    assert row_columns(row, ["k"], None) == {"k": value}


def test_a_row_without_a_column_or_a_target_has_none_or_that_of_the_run():
    assert row_columns({"target_length": None}, ["k", "target_length"], 6) == {"k": None, "target_length": 6}
    assert row_columns({"target_length": 8}, ["target_length"], 6) == {"target_length": 8}
