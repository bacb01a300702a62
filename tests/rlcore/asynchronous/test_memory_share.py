"""What a trainer leaves of a GPU, by hand and by its limits."""

from dataclasses import replace

import pytest

from rlcore.asynchronous.memory_share import share_beside
from rlcore.errors import PlacementError
from rlcore.models.config import DecoderConfig, LoraConfig

SMALL = DecoderConfig("qwen3", 1000, 64, 2, 4, 2, 16, 128, max_length=64)
QWEN = DecoderConfig("qwen3", 151_936, 1024, 28, 16, 8, 128, 3072, max_length=4096)
LORA = LoraConfig(16, 32.0, frozenset(QWEN.projections))
TRAINER = {"per_device_train_batch_size": 2, "sequence_len": 100}


def test_by_hand() -> None:
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 64 * 2 * 128 + 128 * 64
    weights, tokens = 2 * layer + 1000 * 64, 200
    needed = 18 * weights + 12 * tokens * 64 + 2 * 2 * tokens * 64 + 4 * tokens * 1000 + 2_500_000_000
    assert share_beside(TRAINER, SMALL, 10**10) == pytest.approx(0.9 * (10**10 - needed) / 10**10, rel=1e-12)


def test_adapters_leave_more_than_all_weights_and_longer_sequences_less() -> None:
    total = 24_000_000_000
    full, adapted = (share_beside(TRAINER, each, total) for each in (QWEN, replace(QWEN, lora=LORA)))
    assert 0.3 < full < 0.5 and 0.6 < adapted < 0.9
    longer = share_beside({**TRAINER, "sequence_len": 4000}, replace(QWEN, lora=LORA), total)
    assert longer < adapted
    assert share_beside(TRAINER, QWEN, 2 * total) > full


def test_a_gpu_that_has_no_room_for_the_trainer_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"the trainer needs 1\d\.\d GB of a GPU of 8.0 GB"):
        share_beside(TRAINER, QWEN, 8_000_000_000)
