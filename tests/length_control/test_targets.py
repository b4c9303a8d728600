"""Where targets come from: schedule, data set, method."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

from leash_trl.data.questions import question_of
from leash_trl.length_control.l1 import L1Max
from leash_trl.length_control.targets import own_target, scheduled_target
from leash_trl.trainer.prompt_rows import column_values, rows_with_targets


def test_schedules_by_hand():
    def scheduled(schedule, *steps):
        return [scheduled_target(schedule, {0: 100, 10: 60, 20: 40}, 40, step) for step in steps]

    assert scheduled("constant", 0) == [40]
    # half way from 100 to 60, and from 60 to 40
    assert scheduled("linear", 0, 5, 15, 99) == [100, 80, 50, 40]
    assert scheduled("staged", 9, 10, 20) == [100, 60, 40]


@pytest.mark.parametrize("bad", [0, -3, "46", True, float("inf")])
def test_a_row_may_have_no_target_but_no_bad_one(bad):
    with pytest.raises(ValueError, match="target_length="):
        own_target({"target_length": bad})
    missing = ({}, {"target_length": None}, {"target_length": float("nan")}, {"target_length": 46})
    assert [*map(own_target, missing)] == [None, None, None, 46]


RED, BLUE = (255, 0, 0), (0, 0, 255)


def picture(color: tuple[int, int, int], palette: bool = False) -> Image.Image:
    made = Image.new("RGB", (2, 3), color)
    return made.quantize(4) if palette else made


def png(made: Image.Image) -> dict:
    buffer = io.BytesIO()
    made.save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def asked(*parts, **columns) -> dict:
    return {"prompt": [{"content": [*parts] or "2 + 2?", "role": "user"}], **columns}


@pytest.mark.parametrize(
    "row_with",
    [
        lambda color: asked(images=[picture(color)]),
        lambda color: asked(image=picture(color, palette=True)),
        lambda color: asked(image=png(picture(color))),
        lambda color: asked(image=np.full((40, 40, 3), color)),
        lambda color: asked(images=[f"{color[0]}.png"]),
        lambda color: asked({"type": "image", "image": picture(color)}, {"type": "text", "text": "2 + 2?"}),
    ],
)
def test_a_question_is_its_text_and_its_pictures(row_with):
    rows = [row_with(color) for color in (RED, BLUE, RED)]
    seen, (red, blue, again), _ = rows_with_targets(rows, L1Max(suffix=" In {n}."), None, None, math.inf)
    assert red == again
    assert len({red, blue, question_of(asked())}) == 3
    assert "In " in str(seen[0]["prompt"])


@pytest.mark.parametrize("none", [{}, {"image": None}, {"images": []}, {"images": None}])
def test_without_pictures_a_question_is_its_text_whatever_the_order_of_its_keys(none):
    prompt = [{"role": "user", "content": "2 + 2?"}]
    assert question_of({"prompt": prompt, **none}) == 1131603105239393652  # saved histories count on it
    assert question_of(asked(**none)) == 1131603105239393652


def test_a_schedule_stretches_targets_up_to_the_generation_limit():
    method = L1Max(budget_range=None, suffix=" {n}")
    rows = [{"prompt": "a", "target_length": own} for own in (None, 50, 80, 400)]
    seen, _, targets = rows_with_targets(rows, method, 400.0, 100.0, generation_limit=300)
    assert targets == [300, 200, 300, 400]
    assert [row["prompt"] for row in seen] == ["a 300", "a 200", "a 300", "a 400"]


def test_columns_are_read_as_python_has_them_whatever_the_format():
    rows = [{"k": torch.tensor(2)}, {"k": np.float64("nan")}, {"k": float("nan")}, {"k": np.int64(3)}, {}]
    assert column_values(rows, ["k"], None) == {"k": [2, None, None, 3, None]}
    assert column_values([{"target_length": None}, {"target_length": 8}], ["target_length"], 6) == {
        "target_length": [6, 8]
    }
