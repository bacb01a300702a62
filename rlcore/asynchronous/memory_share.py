"""The share of a GPU's memory that a trainer on it leaves to vLLM: estimated from sizes, before either begins.

trained state + frozen base + activations + logits + residuals + 2.5 GB ─▶ nine tenths of the rest
"""

from collections.abc import Mapping
from typing import Any

from rlcore.errors import PlacementError
from rlcore.models.config import DecoderConfig

FIXED_BYTES = 2_500_000_000
"""Context, workspaces and fragments of an allocator."""
STATE_BYTES = 18
"""Of a parameter that is trained: 2 of itself in bf16, 4 of its master, 4 of its gradient, 8 of its moments."""
NUM_TENSORS = 6
"""In bf16, that a layer works on at a time, each [tokens, width]."""
MARGIN = 0.1


def share_beside(trainer: Mapping[str, Any], config: DecoderConfig, total_bytes: int) -> float:
    """Return the share, 0 to 1. `trainer` has settings of train.yaml, `config` the model with its adapters, if any.

    Raises PlacementError if the trainer leaves nothing.
    """
    low_rank = sum(inputs * outputs for each in config.low_rank_shapes.values() for inputs, outputs in each)
    trained = config.num_layers * low_rank if config.lora else config.num_weights
    frozen = 2 * config.num_weights if config.lora else 0
    tokens = int(trainer["per_device_train_batch_size"] * trainer["sequence_len"])
    working = 2 * NUM_TENSORS * tokens * config.width
    residuals, logits = 2 * config.num_layers * tokens * config.width, 4 * tokens * config.vocab_size
    needed = STATE_BYTES * trained + frozen + working + residuals + logits + FIXED_BYTES
    if (left := (1 - MARGIN) * (total_bytes - needed)) <= 0:
        raise PlacementError(
            f"the trainer needs {needed / 1e9:.1f} GB of a GPU of {total_bytes / 1e9:.1f} GB, and leaves none to vLLM",
            remedy="a smaller per_device_train_batch_size or sequence_len, or GPUs of their own",
        )
    return left / total_bytes
