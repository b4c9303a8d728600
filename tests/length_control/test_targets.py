"""Where targets come from: schedule, data set, method."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from leash_trl.data.questions import question_hash
from leash_trl.length_control.l1 import L1Max
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.targets import row_target
from leash_trl.trainer.prompt_rows import column_values, common_target, rows_with_targets


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
    prompts, (red, blue, again), _ = rows_with_targets(rows, L1Max(suffix=" In {n}."), None, None, math.inf)
    assert red == again
    assert len({red, blue, question_hash(conversation())}) == 3
    assert "In " in str(prompts[0]["prompt"])


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
    prompts, _, targets = rows_with_targets(rows, method, 400.0, 100.0, generation_limit=300)
    assert targets == [300, 200, 300, 400]
    assert [row["prompt"] for row in prompts] == ["a 300", "a 200", "a 300", "a 400"]


@pytest.mark.parametrize(
    ("rows", "method", "common"),
    [
        ([{"prompt": "a"}, {"prompt": "b"}], Leash(), 150.0),
        ([{"prompt": "a"}, {"prompt": "b", "target_length": 50}], Leash(), math.nan),
        # of a data set in which other rows have targets
        ([{"prompt": "a", "target_length": None}, {"prompt": "b", "target_length": None}], Leash(), math.nan),
        ([{"prompt": "a"}, {"prompt": "b"}], L1Max(budget_range=(20, 90), suffix=" {n}"), math.nan),
    ],
)
def test_prompts_have_a_common_target_unless_data_set_or_method_gives_them_others(rows, method, common):
    _, questions, targets = rows_with_targets(rows, method, 150.0, 100.0, math.inf)
    assert common_target(rows, questions, targets, method, 100.0) == pytest.approx(common, nan_ok=True)


def test_without_a_schedule_a_target_keeps_its_last_bit():
    # 0.21 * 0.21 / 0.21 is less than 0.21
    _, _, targets = rows_with_targets([{"prompt": "a"}], Leash(), 0.21, 0.21, math.inf)
    assert targets == [0.21]


def test_columns_are_read_as_python_has_them_whatever_the_format():
    rows = [{"k": torch.tensor(2)}, {"k": np.float64("nan")}, {"k": math.nan}, {"k": np.int64(3)}, {}]
    assert column_values(rows, ["k"], None) == {"k": [2, None, None, 3, None]}


def test_a_row_without_a_target_has_that_of_the_run():
    rows = [{"target_length": None}, {"target_length": 8}]
    assert column_values(rows, ["target_length"], 6) == {"target_length": [6, 8]}
