"""How well a gym model does when its traces are forced into one style: the price of each token that is left out.

The words of a trace, its labels and its terms are given; only the totals are the model's own.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import traces
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.utils import ALL_CACHE_NAMES

from leash_trl.gym import task


TOTAL = "{total}"
# how a step is written, by its number from 1
STYLES: dict[str, Callable[[int], str]] = {
    "full, twice": lambda step: traces.FULL,
    "full": lambda step: traces.FULL,
    "short": lambda step: traces.SHORT,
    "terse": lambda step: traces.TERSE,
    "two of three": lambda step: traces.TERSE if step % 3 else "",
    "every second": lambda step: "" if step % 2 else traces.TERSE,
    "none": lambda step: "",
}


def forced_text(problem: task.Problem, style: str) -> list[str]:
    """The trace in one style, cut where the model writes a total; the last piece follows the answer."""
    step_text = STYLES[style]
    one_pass = ""
    for step, (label, term) in enumerate(zip(task.LABELS, problem.terms[1:], strict=False), 1):
        one_pass += step_text(step).replace("{label}", label).replace("{term:+d}", f"{term:+d}")
    text = one_pass
    if style == "full, twice":
        text += traces.RECHECK_OPENINGS[0].format(problem.terms[0]) + one_pass
    return f"{text}</think>\\boxed{{{TOTAL}}}".split(TOTAL)


@torch.no_grad()
def forced_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[task.Problem],
    style: str,
    greedy: bool = False,
) -> tuple[torch.Tensor, int]:
    """Whether each answer to problems of one level is right, of shape `(len(problems),)`, and the tokens of each
    completion, the same for all.

    Where a total belongs, the model chooses among numbers only; `greedy` takes the likeliest instead of sampling.
    """
    prompts = []
    texts = []
    for problem in problems:
        messages = [{"role": "user", "content": problem.question}]
        prompts.append(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
        texts.append([tokenizer.encode(piece) for piece in forced_text(problem, style)])
    numbers = [str(number) for number in range(traces.MAX_NUMBER + 1)]
    number_ids = torch.tensor(tokenizer.convert_tokens_to_ids(numbers))
    # problems of a level have prompts and pieces of the same lengths, so that nothing is padded
    *pieces, last_piece = zip(*texts, strict=True)
    length = len(last_piece[0]) + 1  # with the end token
    cache = {ALL_CACHE_NAMES[0]: DynamicCache(config=model.config)}
    unread = torch.tensor(prompts)  # what the model has not read, of shape (len(problems), tokens)
    for piece in pieces:
        piece_ids = torch.tensor(piece, dtype=torch.long).reshape(len(problems), -1)  # it may be empty
        length += piece_ids.shape[1] + 1
        logits = model(input_ids=torch.cat([unread, piece_ids], dim=1), **cache).logits[:, -1]
        scores = logits[:, number_ids]
        choice = scores.argmax(-1, keepdim=True) if greedy else torch.multinomial(scores.softmax(-1), 1)
        unread = number_ids[choice]  # the total, of shape (len(problems), 1)
    answers = torch.tensor([tokenizer.convert_tokens_to_ids(str(problem.answer)) for problem in problems])
    return unread[:, 0].eq(answers), length


def force_styles(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, num_problems: int = 512, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Each style at each level, on held-out problems: `accuracy` of sampled, `greedy_accuracy` of likeliest totals.

    `level` is the number of additions and subtractions, `tokens` the length of each completion, end token included.
    There are `num_problems` of each level, with repeats at level 1, which has fewer.
    """
    torch.manual_seed(seed)
    for level in task.LEVELS:
        stream = task.problems(seed, (level,), "test")
        problems = [*itertools.islice(stream, num_problems)]
        for style in STYLES:
            sampled, tokens = forced_answers(model, tokenizer, problems, style)
            greedy, _ = forced_answers(model, tokenizer, problems, style, greedy=True)
            yield {
                "style": style,
                "level": level,
                "tokens": tokens,
                "accuracy": sampled.float().mean().item(),
                "greedy_accuracy": greedy.float().mean().item(),
            }
