"""`LengthGroupedGRPOTrainer`: a `GRPOTrainer` with the same gradients, but less padding and no rows without signal."""

import logging
import math
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel
from trl import GRPOTrainer

from leash_trl.engines.cudnn_attention import avoid_faulty_cudnn_attention
from leash_trl.microbatching import batch_fields, loss_weights
from leash_trl.microbatching.length_grouped_grpo_config import LengthGroupedGRPOConfig
from leash_trl.microbatching.partition import Arrangement, RowWidths, arrange


logger = logging.getLogger(__name__)

# Keys of the means that TRL logs for each micro-batch in GRPOTrainer._compute_loss
TOKEN_MEAN_KEYS = ("entropy", "kl")  # over tokens
CLIP_MEAN_KEYS = (  # over tokens, or over rows if importance_sampling_level is "sequence"
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "cispo_clip_ratio",
)
ROW_MEAN_KEYS = ("vespo/phi_seq_mean",)  # over rows, which are completions

FACTORS = "factors"  # field of a micro-batch with the [`~loss_weights.Factors`] of its loss and means


class LengthGroupedGRPOTrainer(GRPOTrainer):
    """[`~trl.GRPOTrainer`] with a faster training step, which computes less padding and skips completions without
    signal. Nothing else changes: completions, rewards, advantages and, up to rounding, the gradient of every update
    are those of TRL.

    TRL pads a generation batch to its longest completion, shuffles it and splits it by number of rows. The gradient of
    an accumulation window, which holds the micro-batches of one policy update, does not depend on which rows share a
    micro-batch. So this trainer sorts the rows of a window, over all processes, by length and distributes them again
    into as many micro-batches as before, all of about the same size. It also groups by length for evaluation and for
    the log-probabilities of the old policy and the reference policy.

    If this would change the gradient, rows stay in TRL's micro-batches, and a warning says why. Batches with images,
    or with other fields that this trainer does not know, stay as TRL makes them. For every generation batch, the log
    has `microbatch/padding_share`, the share of padding in the computed positions, and `microbatch/skipped_share`, the
    share of skipped completions.

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

    _buffered_inputs: list[dict[str, Any]] | None
    _tokenizer: Any  # TRL: GRPOTrainer.__init__ sets it, with a processor to that of the processor

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        avoid_faulty_cudnn_attention()
        model = self.accelerator.unwrap_model(self.model)
        self._keeps_prompt_padding = may_see_prompt_padding(model)
        # Each list has the reasons, as text for a warning, why trimming, regrouping or skipping would change the
        # gradient. A rope that follows the width of a batch is against all three, since each of them makes batches
        # narrower.
        against_trimming = reasons_against_trimming(model)
        against_regrouping = against_trimming + self._reasons_against_regrouping()
        against_skipping = against_trimming + loss_weights.reasons_against_skipping(self.args, self.aux_loss_enabled)

        # TRL's own GRPOConfig has no switches; then the class itself is read, whose attributes are the defaults.
        switches = self.args if isinstance(self.args, LengthGroupedGRPOConfig) else LengthGroupedGRPOConfig
        self._trims = switches.length_grouped_microbatches and not against_trimming
        self._regroups = switches.length_grouped_microbatches and not against_regrouping
        if not self._regroups and self.accelerator.num_processes > 1:
            # TRL gathers a statistic of each row, so all processes must compute equally many rows.
            against_skipping.append("completions stay in their process, and processes may skip different numbers")
        self._skips_zero_signal = switches.skip_zero_signal and not against_skipping
        if switches.length_grouped_microbatches:
            warn_of("completions stay in TRL's micro-batches", against_regrouping)
        if switches.skip_zero_signal:
            warn_of("completions with an advantage of zero are computed too", against_skipping)

        # With regrouping, all processes share their rows, so that a row may move to another process. Otherwise each
        # process keeps its rows, as if it were the only one.
        self._num_sharing_processes = self.accelerator.num_processes if self._regroups else 1
        self._index_among_sharing_processes = self.accelerator.process_index if self._regroups else 0

    def _reasons_against_regrouping(self) -> list[str]:
        """Returns the settings because of which the gradient of a window depends on which completions share a
        micro-batch or a process."""
        reasons = loss_weights.reasons_against_regrouping(self.args, self.aux_loss_enabled)
        if self._keeps_prompt_padding and self.accelerator.num_processes > 1:
            reasons.append("the model may depend on the padding at the left of a row, which differs between processes")
        # None unless the run is configured with such a parallelism.
        parallelism = self.accelerator.parallelism_config
        if parallelism is not None and parallelism.non_data_parallel_size > 1:
            reasons.append("with tensor, context or sequence parallelism, processes hold the same completions")
        return reasons

    def _prepare_inputs(self, generation_batch):
        """Regroups the micro-batches whenever TRL has created new ones."""
        # TRL: GRPOTrainer._prepare_inputs keeps the micro-batches of a generation batch in this list, and replaces it
        # only when it generates; in an evaluation, it leaves the list alone
        previous = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is None or self._buffered_inputs is previous:
            return inputs
        self._buffered_inputs = self._rearranged(self._buffered_inputs)
        # TRL: GRPOTrainer._prepare_inputs chooses the micro-batch of a step in the same way
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _rearranged(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns as many micro-batches with the rows of the given ones, or `batches` itself if nothing can change."""
        if not self._trims and not self._skips_zero_signal:
            return batches
        if not self._can_handle_fields(batches[0]):
            return batches
        size = 1  # number of micro-batches whose rows may be exchanged
        if self._regroups:
            # Accumulation windows begin at multiples of the first number, generation batches at multiples of the
            # second, and the last window of an epoch ends with a generation batch. So a group of `size` micro-batches
            # never belongs to two windows.
            size = math.gcd(self.args.gradient_accumulation_steps, self.args.steps_per_generation)
        rearranged = []
        for start in range(0, len(batches), size):
            rearranged += self._rearranged_window(batches[start : start + size])
        return rearranged

    def _can_handle_fields(self, batch: dict[str, Any]) -> bool:
        """Returns whether all processes can handle all fields of their batches. They decide together, since TRL may
        drop images in a single process, and a process that gathers alone would wait for the others forever."""
        unfamiliar = []  # such as pixel_values
        for name, values in batch.items():
            if name not in batch_fields.SUPPORTED_FIELDS or not isinstance(values, torch.Tensor):
                unfamiliar.append(name)
        if unfamiliar:
            fields = ", ".join(sorted(unfamiliar))
            warnings.warn(f"batches with {fields} stay as TRL makes them: not grouped by length", stacklevel=2)
        can_handle = torch.tensor([not unfamiliar], device=self.accelerator.device)
        return bool(self.accelerator.gather(can_handle).all())

    def _rearranged_window(self, window: list[batch_fields.Batch]) -> list[dict[str, Any]]:
        """Returns this process's micro-batches of a window whose rows may be distributed freely."""
        joined = batch_fields.join_batches(window, self._tokenizer.pad_token_id)
        # From here on, a row is a number: that of a row of this process or, with regrouping, of all processes, whose
        # rows are numbered together.
        rows = batch_fields.RowFacts(*self._gathered(batch_fields.row_facts(joined)).T.tolist())
        widths = self._row_widths(rows, prompt_width=joined["prompt_ids"].shape[1])
        plan = arrange(
            widths,
            is_needed=rows.affects_loss if self._skips_zero_signal else [True] * len(rows.has_signal),
            num_steps=len(window),
            num_processes=self._num_sharing_processes,
        )
        self._log_arrangement(rows.lengths, widths, plan)
        factors = loss_weights.factors_of_microbatches(
            self.loss_type,
            plan,
            self._index_among_sharing_processes,
            num_loss_tokens=rows.num_loss_tokens,
            num_rows_before=len(window[0]["advantages"]),
        )
        batches = self._trimmed_batches(joined, plan[self._index_among_sharing_processes], widths)
        return [{**batch, FACTORS: factor} for batch, factor in zip(batches, factors, strict=True)]

    def _row_widths(self, rows: batch_fields.RowFacts, prompt_width: int) -> RowWidths:
        """Returns the columns that rows need, whose prompts TRL has padded to `prompt_width`."""

        def fitting(lengths: list[int]) -> list[int]:
            return [batch_fields.fitting_width(length, self.pad_to_multiple_of) for length in lengths]

        if self._keeps_prompt_padding:
            return RowWidths([prompt_width] * len(rows.prompt_lengths), fitting(rows.completion_lengths))
        return RowWidths(fitting(rows.prompt_lengths), fitting(rows.completion_lengths))

    def _gathered(self, values: torch.Tensor, name: str | None = None) -> torch.Tensor:
        """Gathers the rows of all processes that share their rows; the rows of a named field are padded to the widest
        first."""
        if self._num_sharing_processes == 1:  # each process keeps its rows
            return values
        if name in batch_fields.PADDING_BY_FIELD:  # each process has padded to its own longest row
            values = self.accelerator.pad_across_processes(
                values,
                dim=1,
                pad_index=batch_fields.padding_value(name, self._tokenizer.pad_token_id),
                pad_first=batch_fields.PADDING_BY_FIELD[name].side == "left",
            )
        return self.accelerator.gather(values)

    def _trimmed_batches(
        self, joined: batch_fields.Batch, parts: list[list[int]], widths: RowWidths
    ) -> list[dict[str, Any]]:
        """Returns one trimmed batch for each list of rows in `parts`, which may be rows of other processes too."""
        batches: list[dict[str, Any]] = [{} for _ in parts]
        # Fields are gathered from all processes one after the other, which takes less memory than all at once.
        for name, values in joined.items():
            if name in batch_fields.BATCH_LEVEL_FIELDS:
                for batch in batches:
                    batch[name] = values
                continue
            gathered = self._gathered(values, name)
            for batch, part in zip(batches, parts, strict=True):
                prompt_width, completion_width = widths.of_batch(part)
                batch[name] = batch_fields.trimmed_field(name, gathered, prompt_width, completion_width)[part]
        return batches

    def _log_arrangement(self, lengths: list[int], widths: RowWidths, plan: Arrangement) -> None:
        """Logs the shares of padding and of skipped rows, over all processes."""
        # The plan lists, for each process, the rows of each of its micro-batches.
        parts = list(chain.from_iterable(plan))
        kept_rows = list(chain.from_iterable(parts))
        num_real = sum(lengths[row] for row in kept_rows)  # positions with a token
        num_computed = sum(map(widths.num_positions, parts))  # with or without a token
        counts = torch.tensor([len(kept_rows), len(lengths), num_real, num_computed])
        # With regrouping, the plan is that of all processes already, else only of this one.
        if not self._regroups:
            counts = self.accelerator.reduce(counts.to(self.accelerator.device), reduction="sum")
        num_kept, num_rows, num_real, num_computed = counts.tolist()
        metrics = self._metrics["train"]
        metrics["microbatch/padding_share"].append(1 - num_real / num_computed)
        metrics["microbatch/skipped_share"].append(1 - num_kept / num_rows)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Weights the loss and the logged means so that the rows have the same weight as in TRL's own
        micro-batches."""
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if FACTORS not in inputs:  # of a batch that stays as TRL makes it, or of an evaluation
            return loss
        factors: loss_weights.Factors = inputs[FACTORS]
        # TRL takes a clipped ratio for each token or, as in GSPO, for each row.
        clip_factor = factors.row if self.importance_sampling_level == "sequence" else factors.token
        factor_by_key = dict.fromkeys(TOKEN_MEAN_KEYS, factors.token)
        factor_by_key |= dict.fromkeys(ROW_MEAN_KEYS, factors.row) | dict.fromkeys(CLIP_MEAN_KEYS, clip_factor)
        # TRL: GRPOTrainer._compute_loss has just appended one value of each mean that it logs
        metrics = self._metrics["train"]
        for key in factor_by_key.keys() & metrics.keys():
            metrics[key][-1] *= factor_by_key[key]
        return loss * factors.loss

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **options
    ):
        """Computes rows of similar length together if no gradients are needed; TRL takes them in order, padded to the
        longest of all."""
        # The options are TRL's fields of images, which are None for text, and `compute_aux_loss`, for a router loss,
        # which is a mean over the rows of a call and would change with their order.
        has_only_text = all(value is None or value is False for value in options.values())
        if torch.is_grad_enabled() or not self._trims or not has_only_text:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **options
            )
        lengths = attention_mask[:, -logits_to_keep:].sum(dim=1)
        parts = batch_fields.parts_of_similar_length(lengths, batch_size or self.args.per_device_train_batch_size)
        outputs = []
        for rows in parts:
            width = batch_fields.fitting_width(int(lengths[rows].max()), self.pad_to_multiple_of)
            num_missing = max(logits_to_keep - width, 0)  # columns on the right that these rows do not need
            outputs.append(
                self._outputs_without_columns(
                    num_missing, model, input_ids[rows], attention_mask[rows], logits_to_keep, compute_entropy
                )
            )
        # First log-probabilities, then entropies, if any.
        first_order = torch.cat(parts).argsort()
        in_order = [torch.cat(values)[first_order] for values in zip(*outputs, strict=True)]
        return in_order[0], in_order[1] if compute_entropy else None, None

    def _outputs_without_columns(
        self, num_missing, model, input_ids, attention_mask, logits_to_keep, compute_entropy
    ) -> list[torch.Tensor]:
        """Returns log-probabilities and, if requested, entropies, of shape `(rows, logits_to_keep)`, computed without
        the last `num_missing` columns, which are padding."""
        end = input_ids.shape[1] - num_missing
        # TRL: the method returns log-probabilities, entropies and the router loss; the last two are None unless they
        # are requested
        output = super()._get_per_token_logps_and_entropies(
            model,
            input_ids[:, :end],
            attention_mask[:, :end],
            logits_to_keep - num_missing,
            compute_entropy=compute_entropy,
        )
        # The caller expects these columns; those of padding are masked later.
        padding = (0, num_missing)  # on the left, on the right
        return [torch.nn.functional.pad(values, padding) for values in output if values is not None]


def warn_of(effect: str, reasons: Sequence[str]) -> None:
    """Logs a warning of an effect and its reasons, if there are any reasons."""
    if reasons:
        logger.warning("%s: %s", effect, "; ".join(reasons))


def may_see_prompt_padding(model: PreTrainedModel | PeftModel) -> bool:
    """Returns whether the output may depend on the number of padding tokens on the left, so that they must stay."""
    # The virtual tokens of prompt learning are to the left of the padding, so trimming would change their distance to
    # the prompt.
    is_prompt_learning = isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
    model_type = model.config.get_text_config().model_type
    return is_prompt_learning or model_type not in batch_fields.PADDING_INVARIANT_MODELS


def reasons_against_trimming(model: PreTrainedModel | PeftModel) -> list[str]:
    """Returns the settings of the model because of which the gradient depends on the width of a batch."""
    rope_types = batch_fields.rope_types(model.config.get_text_config().to_dict().get("rope_parameters"))
    return [f"rope_type={name!r} follows the width" for name in rope_types & batch_fields.LENGTH_DEPENDENT_ROPE]
