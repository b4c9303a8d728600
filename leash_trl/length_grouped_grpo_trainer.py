"""`LengthGroupedGRPOTrainer`: the gradients of a `GRPOTrainer` step without computing padding or zero signal."""

import logging
import math
from typing import Any

import torch
from peft import PeftModel
from trl import GRPOTrainer

from leash_trl import batch_fields, loss_weights, microbatch
from leash_trl.leash_grpo_config import LeashGRPOConfig


logger = logging.getLogger(__name__)

TOKEN_MEANS = ("entropy", "kl", "cispo_clip_ratio")
CLIP_MEANS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")
ROW_MEANS = ("vespo/phi_seq_mean",)


class LengthGroupedGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` that fills micro-batches by length, trims each to its own longest row, and leaves out completions
    that add nothing to the loss.

    TRL pads a generation batch to its longest completion, shuffles it and splits it by number of rows. Which rows
    share a micro-batch does not change the gradient of an accumulation window, so here the rows of a window, over all
    processes, are sorted by length and dealt anew: as many forward passes as before, each about as large as the
    others. Log-probabilities of the old and the reference policy, and evaluation, are computed in the same way.

    Where that would not be exact, TRL's split stays: see `_reasons_against_regrouping`.
    """

    args: LeashGRPOConfig
    _buffered_inputs: list[dict[str, Any]] | None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._keeps_prompt_padding = not self._ignores_left_edge()
        reasons = self._reasons_against_regrouping()
        self._regroups = self.args.length_grouped_microbatches and not reasons
        if self.args.length_grouped_microbatches and reasons:
            logger.warning("micro-batches are trimmed, but not regrouped by length: %s", "; ".join(reasons))
        self._skips_zero_signal = self.args.skip_zero_signal and not self._needs_all_rows()

    def _reasons_against_regrouping(self) -> list[str]:
        """What makes the loss of a window depend on which completions share a micro-batch or a process."""
        parallelism = self.accelerator.parallelism_config
        reasons = {
            f"loss_type={self.loss_type!r} is a mean over each micro-batch's tokens": self.loss_type
            not in loss_weights.WINDOW_NORMALIZED | loss_weights.ROW_NORMALIZED,
            "the entropy bonus is a mean over each micro-batch": self._entropy_bonus_enabled,
            "top_entropy_quantile is a quantile of each micro-batch": self.top_entropy_quantile < 1.0,
            "the router loss is computed for each micro-batch": self.aux_loss_enabled,
            "use_liger_kernel may replace TRL's loss": self.args.use_liger_kernel,
            "a model that counts positions from the left edge sees other ones in another process": (
                self._keeps_prompt_padding and self.accelerator.num_processes > 1
            ),
            "with tensor, context or sequence parallelism, several processes hold the same completions": parallelism
            is not None
            and parallelism.non_data_parallel_size > 1,
        }
        return [reason for reason, holds in reasons.items() if holds]

    def _needs_all_rows(self) -> bool:
        """Whether completions with an advantage of zero add to the loss or to another completion's weight."""
        return (
            self.beta != 0.0
            or self.loss_type not in loss_weights.LOSS_TYPES
            or self._entropy_bonus_enabled
            or self.top_entropy_quantile < 1.0
            or self.aux_loss_enabled
            or self.args.use_liger_kernel
        )

    def _ignores_left_edge(self) -> bool:
        model = self.accelerator.unwrap_model(self.model)
        # virtual tokens stand to the left of the padding
        if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
            return False
        return batch_fields.ignores_left_edge(model.config.get_text_config().to_dict().get("rope_parameters"))

    def _prepare_inputs(self, generation_batch):
        """Rearranges the micro-batches each time TRL has made new ones."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is None or self._buffered_inputs is before:  # evaluation, or read from the buffer
            return inputs
        self._buffered_inputs = self._rearranged(self._buffered_inputs)
        # TRL: GRPOTrainer._prepare_inputs chooses the micro-batch in the same way
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _rearranged(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not batches[0].keys() <= batch_fields.FIELDS:
            return batches
        if not (self.args.length_grouped_microbatches or self._skips_zero_signal):
            return batches
        # Accumulation windows begin at multiples of one, generations at multiples of the other, and the last window of
        # an epoch ends with a generation, so `size` micro-batches in a row never belong to two windows.
        size = math.gcd(self.args.gradient_accumulation_steps, self.args.steps_per_generation)
        size = size if self._regroups else 1
        windows = [batches[start : start + size] for start in range(0, len(batches), size)]
        return [batch for window in windows for batch in self._rearranged_window(window)]

    def _rearranged_window(self, window: list[batch_fields.Batch]) -> list[dict[str, Any]]:
        """This process's micro-batches of a window whose rows may be split freely."""
        rows = batch_fields.joined(window)
        prompts, completions, tokens, signal = self._of_all(batch_fields.row_facts(rows)).T.tolist()
        is_needed = self._needed([t > 0 and s > 0 for t, s in zip(tokens, signal, strict=True)], completions)
        plan = microbatch.arrange(prompts, completions, is_needed, len(window), self._num_sharing)
        mine = plan[self.accelerator.process_index if self._regroups else 0]
        self._log_arrangement(prompts, completions, plan)
        every_step = [[row for process in plan for row in process[step]] for step in range(len(window))]
        token_factors = loss_weights.mean_factors([sum(tokens[row] for row in rows) for rows in every_step])
        row_factors = loss_weights.mean_factors([len(rows) for rows in every_step])
        prompt_width = rows["prompt_ids"].shape[1]
        widths = [self._widths(prompts, completions, part, prompt_width) for part in mine]
        batches = self._picked(rows, mine, widths)
        for step, batch in enumerate(batches):
            batch["loss_factor"] = loss_weights.loss_factor(
                self.loss_type,
                num_rows=len(mine[step]),
                num_rows_before=len(window[step]["advantages"]),
                num_tokens=sum(tokens[row] for row in mine[step]),
                num_tokens_before=sum(tokens),
            )
            batch["token_factor"], batch["row_factor"] = token_factors[step], row_factors[step]
        return batches

    def _needed(self, adds_to_loss: list[bool], lengths: list[int]) -> list[bool]:
        """Which rows are to be computed. Where processes keep their rows, as many in each: TRL gathers a statistic of
        every row."""
        if not self._skips_zero_signal:
            return [True] * len(lengths)
        if self._regroups:
            return adds_to_loss
        counts = self.accelerator.gather(torch.tensor([sum(adds_to_loss)], device=self.accelerator.device))
        rows = {*microbatch.rows_to_compute(adds_to_loss, lengths, least=int(counts.max()))}
        return [row in rows for row in range(len(lengths))]

    @property
    def _num_sharing(self) -> int:
        """Processes that share their rows."""
        return self.accelerator.num_processes if self._regroups else 1

    def _of_all(self, values: torch.Tensor, pad_first: bool = False) -> torch.Tensor:
        """The rows of all processes that share theirs."""
        if self._num_sharing == 1:
            return values
        same_width = self.accelerator.pad_across_processes(values, dim=1, pad_first=pad_first)
        return self.accelerator.gather(same_width)

    def _widths(
        self, prompts: list[int], completions: list[int], part: list[int], prompt_width: int
    ) -> tuple[int, int]:
        """Columns that the prompts and the completions of some rows need, of `prompt_width` for prompts."""
        if not self._keeps_prompt_padding:
            prompt_width = batch_fields.fitting_width((prompts[row] for row in part), self.pad_to_multiple_of)
        return prompt_width, batch_fields.fitting_width((completions[row] for row in part), self.pad_to_multiple_of)

    def _picked(
        self, rows: batch_fields.Batch, plan: list[list[int]], widths: list[tuple[int, int]]
    ) -> list[dict[str, Any]]:
        """One trimmed batch for each list of rows. Fields are gathered one after the other, to save memory."""
        batches: list[dict[str, Any]] = [{} for _ in plan]
        for name, values in rows.items():
            is_whole = name in batch_fields.WHOLE_FIELDS
            everywhere = values if is_whole else self._of_all(values, name in batch_fields.PROMPT_FIELDS)
            for batch, part, width in zip(batches, plan, widths, strict=True):
                batch[name] = everywhere if is_whole else batch_fields.cut(name, everywhere, *width)[part]
        return batches

    def _log_arrangement(self, prompts: list[int], completions: list[int], plan: list[list[list[int]]]) -> None:
        parts = [part for process in plan for part in process]
        kept = [row for part in parts for row in part]
        computed = sum(microbatch.positions([prompts[i] for i in p], [completions[i] for i in p]) for p in parts)
        metrics = self._metrics["train"]
        metrics["leash/padding_share"].append(1 - sum(prompts[i] + completions[i] for i in kept) / max(computed, 1))
        metrics["leash/skipped_share"].append(1 - len(kept) / len(prompts))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Gives loss and logged means the weight that the rows of this micro-batch have in TRL's own split."""
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if "loss_factor" not in inputs:
            return loss
        by_row = (*ROW_MEANS, *(CLIP_MEANS if self.importance_sampling_level == "sequence" else ()))
        for name in {*TOKEN_MEANS, *CLIP_MEANS, *ROW_MEANS} & self._metrics["train"].keys():
            self._metrics["train"][name][-1] *= inputs["row_factor" if name in by_row else "token_factor"]
        return loss * inputs["loss_factor"]

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **options
    ):
        """Without gradients, computes rows of like length together instead of in order."""
        given = {name for name, value in options.items() if value is not None and value is not False}
        is_plain = given <= {"compute_entropy"} and self.args.length_grouped_microbatches
        if torch.is_grad_enabled() or not is_plain:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **options
            )
        width = input_ids.shape[1] - logits_to_keep
        fields = {
            "prompt_ids": input_ids[:, :width],
            "prompt_mask": attention_mask[:, :width],
            "completion_ids": input_ids[:, width:],
            "completion_mask": attention_mask[:, width:],
        }
        num_parts = -(-len(input_ids) // (batch_size or self.args.per_device_train_batch_size))
        prompts, completions = (fields[f"{name}_mask"].sum(dim=1).tolist() for name in ("prompt", "completion"))
        parts = microbatch.partition(prompts, completions, num_parts)
        outputs = []
        for part in parts:
            widths = self._widths(prompts, completions, part, width)
            batch = {name: batch_fields.cut(name, values, *widths)[part] for name, values in fields.items()}
            outputs.append(self._logps_and_entropies_of(model, batch, options))
        return tuple(
            None if values[0] is None else batch_fields.scattered(values, parts, logits_to_keep)
            for values in zip(*outputs, strict=True)
        )

    def _logps_and_entropies_of(self, model, batch: batch_fields.Batch, options: dict[str, Any]):
        return super()._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
            **options,
        )
