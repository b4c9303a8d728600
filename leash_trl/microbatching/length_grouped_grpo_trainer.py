"""`LengthGroupedGRPOTrainer`: a `GRPOTrainer` with the same gradients, but less padding and no rows without signal."""

import logging
import math
import warnings
from typing import Any

import torch
from peft import PeftModel
from trl import GRPOTrainer

from leash_trl.engines.cudnn_attention import avoid_faulty_cudnn_attention
from leash_trl.microbatching import batch_fields, loss_weights
from leash_trl.microbatching.length_grouped_grpo_config import LengthGroupedGRPOConfig
from leash_trl.microbatching.partition import arrange, partition, positions, rows_to_compute
from leash_trl.microbatching.trl_members import TRLMembers, check_trl_members


logger = logging.getLogger(__name__)

# TRL: GRPOTrainer._compute_loss logs these means over tokens, and clip ratios at sequence level over completions
TOKEN_MEANS = ("entropy", "kl")
CLIP_MEANS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")
ROW_MEANS = ("vespo/phi_seq_mean",)


class LengthGroupedGRPOTrainer(GRPOTrainer):
    """[`~trl.GRPOTrainer`] with a faster training step, which computes less padding and skips completions without
    signal. Nothing else changes: completions, rewards, advantages and, up to rounding, the gradient of every update
    are those of TRL.

    TRL pads a generation batch to its longest completion, shuffles it and splits it by number of rows. The gradient of
    an accumulation window does not depend on which rows share a micro-batch. So this trainer sorts the rows of a
    window, over all processes, by length and distributes them again into as many micro-batches as before, all of about
    the same size. It also groups by length for evaluation and for the log-probabilities of the old policy and the
    reference policy.

    If this would change the gradient, rows stay in TRL's micro-batches, and a warning says why. The same holds if
    TRL's micro-batches are not padded. For every generation batch, the log has `microbatch/padding_share`, the share
    of padding in the computed positions, and `microbatch/skipped_share`, the share of skipped completions.

    Args:
        args ([`~trl.GRPOConfig`]): As for [`~trl.GRPOTrainer`]; a [`LengthGroupedGRPOConfig`] can turn off grouping or
            skipping.
        kwargs: All other arguments of [`~trl.GRPOTrainer`].

    Example:
        ```python
        from datasets import load_dataset
        from leash_trl import LengthGroupedGRPOTrainer
        from trl.rewards import accuracy_reward

        trainer = LengthGroupedGRPOTrainer(
            model="Qwen/Qwen2.5-0.5B-Instruct",
            reward_funcs=accuracy_reward,
            train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
        )
        trainer.train()
        ```
    """

    TRL_MEMBERS: TRLMembers = {
        "_prepare_inputs": ("generation_batch",),
        "_buffered_inputs": None,
        "_step": None,
        "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
        "compute_loss": ("model", "inputs", "return_outputs", "num_items_in_batch"),
        "_metrics": None,
    }
    """Members of TRL's trainer that this one overrides or writes; a subclass adds its own."""

    _buffered_inputs: list[dict[str, Any]] | None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        avoid_faulty_cudnn_attention()
        check_trl_members(self, self.TRL_MEMBERS)
        model = self.accelerator.unwrap_model(self.model)
        config = model.config.get_text_config()
        # the virtual tokens of prompt learning are to the left of the padding
        is_prompt_learning = isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
        self._keeps_prompt_padding = is_prompt_learning or config.model_type not in batch_fields.RELATIVE_MODELS
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        self._pad_token_id: int = tokenizer.pad_token_id
        kinds = batch_fields.rope_types(config.to_dict().get("rope_parameters"))
        by_width = [f"rope_type={kind!r} follows the width" for kind in kinds & batch_fields.LENGTH_DEPENDENT_ROPE]
        regrouping = by_width + self._reasons_against_regrouping()
        skipping = by_width + loss_weights.reasons_against_skipping(self.args, self.aux_loss_enabled)
        # TRL's own configuration has no switches, so the defaults of the class apply
        switches = self.args if isinstance(self.args, LengthGroupedGRPOConfig) else LengthGroupedGRPOConfig
        self._trims = switches.length_grouped_microbatches and not by_width
        self._regroups = switches.length_grouped_microbatches and not regrouping
        self._skips_zero_signal = switches.skip_zero_signal and not skipping
        self._num_sharing = self.accelerator.num_processes if self._regroups else 1  # processes that share their rows
        if switches.length_grouped_microbatches and regrouping:
            logger.warning("completions stay in TRL's micro-batches: %s", "; ".join(regrouping))
        if switches.skip_zero_signal and skipping:
            logger.warning("completions with an advantage of zero are computed too: %s", "; ".join(skipping))

    def _reasons_against_regrouping(self) -> list[str]:
        """Returns the settings because of which the gradient of a window depends on which completions share a
        micro-batch or a process."""
        reasons = loss_weights.reasons_against_regrouping(self.args, self.aux_loss_enabled)
        if self._keeps_prompt_padding and self.accelerator.num_processes > 1:
            reasons.append("the model may depend on the padding at the left of a row, which differs between processes")
        parallelism = self.accelerator.parallelism_config
        if parallelism is not None and parallelism.non_data_parallel_size > 1:
            reasons.append("with tensor, context or sequence parallelism, processes hold the same completions")
        return reasons

    def _prepare_inputs(self, generation_batch):
        """Regroups the micro-batches whenever TRL has created new ones."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is None or self._buffered_inputs is before:  # evaluation, or a batch from the buffer
            return inputs
        # TRL: GRPOTrainer._prepare_inputs returns one of the micro-batches that it has just created
        place = next(place for place, batch in enumerate(self._buffered_inputs) if batch is inputs)
        self._buffered_inputs = self._rearranged(self._buffered_inputs)
        return self._buffered_inputs[place]

    def _rearranged(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not (self._trims or self._skips_zero_signal) or not self._knows_fields(batches[0]):
            return batches
        # Accumulation windows begin at multiples of the first number, generation batches at multiples of the second,
        # and the last window of an epoch ends with a generation batch. So a group of `size` micro-batches never
        # belongs to two windows.
        size = math.gcd(self.args.gradient_accumulation_steps, self.args.steps_per_generation)
        size = size if self._regroups else 1
        windows = [batches[start : start + size] for start in range(0, len(batches), size)]
        return [batch for window in windows for batch in self._rearranged_window(window)]

    def _knows_fields(self, batch: dict[str, Any]) -> bool:
        """Returns whether all processes can handle all fields of their batches. They decide together, since TRL may
        drop images in a single process, and a process that gathers alone would wait for the others forever."""
        known = {name for name in batch_fields.FIELDS & batch.keys() if isinstance(batch[name], torch.Tensor)}
        unknown = sorted(batch.keys() - known)
        if unknown:
            fields = ", ".join(unknown)
            warnings.warn(f"batches with {fields} stay as TRL makes them: not grouped by length", stacklevel=2)
        return bool(self.accelerator.gather(torch.tensor([not unknown], device=self.accelerator.device)).all())

    def _rearranged_window(self, window: list[batch_fields.Batch]) -> list[dict[str, Any]]:
        """Returns this process's micro-batches of a window whose rows may be distributed freely."""
        rows = batch_fields.joined(window, self._pad_token_id)
        prompts, completions, tokens, signal = self._of_all(batch_fields.row_facts(rows)).T.tolist()
        columns = self._columns(prompts, completions, rows["prompt_ids"].shape[1])
        is_needed = self._needed([t > 0 and s > 0 for t, s in zip(tokens, signal, strict=True)], completions)
        plan = arrange(*columns, is_needed, len(window), self._num_sharing)
        self._log_arrangement([p + c for p, c in zip(prompts, completions, strict=True)], columns, plan)
        mine = plan[self.accelerator.process_index if self._regroups else 0]
        batches = self._picked(rows, mine, columns)
        every_step = [[row for process in plan for row in process[step]] for step in range(len(window))]
        token_factors = loss_weights.mean_factors([sum(tokens[row] for row in part) for part in every_step])
        row_factors = loss_weights.mean_factors([len(part) for part in every_step])
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

    def _columns(self, prompts: list[int], completions: list[int], prompt_width: int) -> tuple[list[int], list[int]]:
        """Returns the number of columns that each row needs for its prompt and for its completion."""

        def fitting(lengths: list[int]) -> list[int]:
            return [batch_fields.fitting_width(length, self.pad_to_multiple_of) for length in lengths]

        prompt_columns = [prompt_width] * len(prompts) if self._keeps_prompt_padding else fitting(prompts)
        return prompt_columns, fitting(completions)

    def _needed(self, adds_to_loss: list[bool], lengths: list[int]) -> list[bool]:
        """Returns which rows to compute. Processes that keep their own rows must compute the same number, since TRL
        gathers a statistic of every row."""
        if not self._skips_zero_signal:
            return [True] * len(lengths)
        if self._regroups:
            return adds_to_loss
        counts = self.accelerator.gather(torch.tensor([sum(adds_to_loss)], device=self.accelerator.device))
        rows = {*rows_to_compute(adds_to_loss, lengths, least=int(counts.max()))}
        return [row in rows for row in range(len(lengths))]

    def _of_all(self, values: torch.Tensor, name: str | None = None) -> torch.Tensor:
        """Gathers the rows of all processes that share their rows; the rows of a named field are padded to the widest
        first."""
        if self._num_sharing == 1:
            return values
        if name in batch_fields.PADDING:
            values = self.accelerator.pad_across_processes(
                values,
                dim=1,
                pad_index=batch_fields.padding_value(name, self._pad_token_id),
                pad_first=batch_fields.PADDING[name].side == "left",
            )
        return self.accelerator.gather(values)

    def _picked(
        self, rows: batch_fields.Batch, plan: list[list[int]], columns: tuple[list[int], list[int]]
    ) -> list[dict[str, Any]]:
        """Returns one trimmed batch for each list of rows. Fields are gathered one after the other to save memory."""
        batches: list[dict[str, Any]] = [{} for _ in plan]
        for name, values in rows.items():
            if name in batch_fields.WHOLE_FIELDS:
                for batch in batches:
                    batch[name] = values
                continue
            everywhere = self._of_all(values, name)
            for batch, part in zip(batches, plan, strict=True):
                widths = (max(needed[row] for row in part) for needed in columns)
                batch[name] = batch_fields.cut(name, everywhere, *widths)[part]
        return batches

    def _log_arrangement(
        self, lengths: list[int], columns: tuple[list[int], list[int]], plan: list[list[list[int]]]
    ) -> None:
        parts = [part for process in plan for part in process]
        kept = [row for part in parts for row in part]
        computed = sum(positions(*([needed[i] for i in part] for needed in columns)) for part in parts)
        counts = torch.tensor([sum(lengths[row] for row in kept), computed, len(kept), len(lengths)])
        if not self._regroups:  # with regrouping, the plan already covers all processes
            counts = self.accelerator.reduce(counts.to(self.accelerator.device), reduction="sum")
        real, computed, num_kept, num_rows = counts.tolist()
        self._metrics["train"]["microbatch/padding_share"].append(1 - real / computed)
        self._metrics["train"]["microbatch/skipped_share"].append(1 - num_kept / num_rows)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Weights the loss and the logged means so that the rows have the same weight as in TRL's own
        micro-batches."""
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if "loss_factor" not in inputs:
            return loss
        # TRL: GRPOTrainer._compute_loss has just appended one value of each mean that it logs
        by_row = (*ROW_MEANS, *(CLIP_MEANS if self.importance_sampling_level == "sequence" else ()))
        for name in {*TOKEN_MEANS, *CLIP_MEANS, *ROW_MEANS} & self._metrics["train"].keys():
            self._metrics["train"][name][-1] *= inputs["row_factor" if name in by_row else "token_factor"]
        return loss * inputs["loss_factor"]

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **options
    ):
        """Computes rows of similar length together if no gradients are needed; TRL takes them in order, padded to the
        longest of all."""
        given = {name for name, value in options.items() if value is not None and value is not False}
        if torch.is_grad_enabled() or not self._trims or not given <= {"compute_entropy"}:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **options
            )
        num_parts = -(-len(input_ids) // (batch_size or self.args.per_device_train_batch_size))
        prompt_width = input_ids.shape[1] - logits_to_keep
        prompts, completions = attention_mask.tensor_split([prompt_width], dim=1)
        columns = self._columns(prompts.sum(dim=1).tolist(), completions.sum(dim=1).tolist(), prompt_width)
        parts = partition(*columns, num_parts)
        outputs = []
        for part in parts:
            before, behind = (max(needed[row] for row in part) for needed in columns)
            kept = slice(max(0, prompt_width - before), prompt_width + behind)
            # TRL: the method returns log-probabilities, entropies and the router loss, the last two only if asked
            rows, keep = (input_ids[part, kept], attention_mask[part, kept]), min(behind, logits_to_keep)
            outputs.append(super()._get_per_token_logps_and_entropies(model, *rows, keep, **options))
        return tuple(
            None if values[0] is None else batch_fields.scattered(values, parts, logits_to_keep)
            for values in zip(*outputs, strict=True)
        )
