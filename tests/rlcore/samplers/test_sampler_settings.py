"""Settings of samplers that cannot work are refused before anything starts, and those without effect are reported."""

import pytest

from rlcore.config import RunConfig
from rlcore.errors import InvalidValueError
from rlcore.models.decoder import Decoder
from rlcore.samplers.build import build_sampler
from rlcore.samplers.vllm.engine import EngineSettings
from tests.rlcore.training.recorded import config
from tests.support.samplers import TOKENIZER, decoder_of


def test_a_cache_that_holds_no_sequence_is_refused() -> None:
    """30 tokens fill 4 blocks of 8, and vLLM keeps one empty."""
    for num_blocks in (5, 6, 0):
        EngineSettings(max_length=30, concurrency=2, block_size=8, num_blocks=num_blocks).check()
    with pytest.raises(InvalidValueError, match=r"sampler\.num_blocks is 4") as refused:
        EngineSettings(max_length=30, concurrency=2, block_size=8, num_blocks=4).check()
    assert refused.value.legal.startswith("5 or more") and refused.value.remedy == "--set sampler.num_blocks=5"


def said(of: RunConfig, decoder: Decoder) -> list[str]:
    lines: list[str] = []
    build_sampler(of, decoder, TOKENIZER, longest=20, report=lines.append)
    return lines


def test_settings_of_vllm_are_reported_where_they_have_no_effect() -> None:
    decoder = decoder_of("qwen3")
    assert said(config(), decoder) == []
    (line,) = said(config(sampler={"num_blocks": 30, "block_size": 4}), decoder)
    assert line == "no effect with sampler.name torch: sampler.block_size, sampler.num_blocks"


def test_no_more_replicas_are_built_than_a_process_can_hold() -> None:
    for number in (0, 65):
        with pytest.raises(InvalidValueError, match="replicas"):
            config(sampler={"replicas": number})
