"""A config.json, read key by key: what nobody has asked for is refused, so that no option is lost without a word."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from isoflop.spec import Problem, SpecError, did_you_mean

CARRIED = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "max_position_embeddings")
"""Keys that say nothing of the architecture and are written back by an export."""

_INERT = """
architectures model_type transformers_version torch_dtype dtype _name_or_path _model_name_or_path name_or_path auto_map
use_cache return_dict output_hidden_states output_attentions output_scores torchscript tokenizer_class prefix
task_specific_params id2label label2id num_labels problem_type finetuning_task gradient_checkpointing
attn_implementation _attn_implementation _attn_implementation_autoset use_bfloat16 tf_legacy_loss chunk_size_feed_forward
sep_token_id unk_token_id cls_token_id mask_token_id forced_bos_token_id forced_eos_token_id
max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
num_return_sequences begin_suppress_tokens suppress_tokens exponential_decay_length_penalty remove_invalid_values
return_dict_in_generate classifier_dropout tie_encoder_decoder cross_attention_hidden_size is_decoder
"""
INERT = frozenset(_INERT.split())
"""Keys of any family that change no logit of a language model: bookkeeping, generation, heads of other tasks."""

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "quantization_config": ((), "quantised weights cannot be read; import the model in fp32, bf16 or fp16"),
    "pruned_heads": (({},), "pruned heads cannot be said"),
    "is_encoder_decoder": ((False,), "this family is read as one stack"),
    "add_cross_attention": ((False,), "this family is read as one stack"),
}
"""Keys of any family that does not read them itself, the values besides null that they may have, and why."""


class Config:
    """The keys and values of a config.json."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._all = dict(table)
        self._table = {name: value for name, value in table.items() if value is not None}
        self._read: set[str] = set()
        self.carried = {name: self._table[name] for name in CARRIED if name in self._table}

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key, or what it means when it is absent or null."""
        self._read.add(name)
        return self._table.get(name, default)

    def optional(self, name: str, default: Any) -> Any:
        """The value of a key for which null means that there is none, and absence the default."""
        self._read.add(name)
        return self._all.get(name, default)

    def need(self, name: str) -> Any:
        """The value of a key that must be there."""
        if name not in self._table:
            raise SpecError.at(name, f"must be given.{did_you_mean(name, self._table.keys() - self._read)}")
        return self.get(name)

    def only(self, name: str, allowed: Collection[Any], why: str) -> None:
        """Refuse a key unless it is absent or has one of the values that can be said."""
        value = self.get(name)
        if value is not None and value not in allowed:
            those = " or ".join(repr(item) for item in allowed) or "absent"
            raise SpecError.at(name, f"must be {those}, came {value!r}: {why}")

    def ignore(self, *names: str) -> None:
        """Keys of this family that change no logit."""
        self._read.update(names)

    def finish(self) -> None:
        """Refuse every key that was not read and is not inert."""
        for name, (allowed, why) in REFUSED.items():
            if name not in self._read:
                self.only(name, allowed, why)
        left = self._table.keys() - self._read - INERT - set(CARRIED)
        if left:
            raise SpecError(
                Problem((name,), f"is no key that this family can say, came {self._table[name]!r}")
                for name in sorted(left)
            )
