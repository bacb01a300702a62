"""Reward models served by vLLM's pooling runner: its own Qwen3, Qwen2 or Llama with a score head, from a checkpoint.

Its kernels are not batch-invariant on a CPU, so that at level invariant one sequence is scored at a time. That this
suffices is observed when the engine starts.
"""

from collections.abc import Callable, Sequence
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

from rlcore.errors import InvalidValueError, LevelError
from rlcore.models.checkpoints import CONFIG, own_dtype, read_json
from rlcore.models.classifier import read_classifier_config
from rlcore.numerics.probe import num_threads
from rlcore.samplers.vllm.shared_process import keep_process_group
from rlcore.samplers.vllm.versions import check_device, engine_arguments, installed_version, isolated

BLOCK_SIZE = 32
"""Tokens of a block of its cache."""
PROBE = tuple(tuple(3 + (5 * at + length) % 13 for at in range(length)) for length in (2, 17, 5, 9, 3, 12))
"""Sequences of tokens that any vocabulary of 16 has."""


class VllmScorer:
    """As `rlcore.rewards.reward_model.Scorer`, by an engine in this process."""

    def __init__(self, engine: Any) -> None:
        """Wrap an engine; `start` builds one."""
        self._engine, self._numbers = engine, count()

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        max_length: int,
        batch_size: int,
        is_serial: bool,
        device: str = "cpu",
        report: Callable[[str], None] = lambda line: None,
    ) -> "VllmScorer":
        """Start an engine for a checkpoint; `is_serial` scores one sequence at a time, whatever `batch_size` is.

        Raises InvalidValueError where vLLM cannot be used here or not for this model, LevelError if scores depend on
        the order of sequences although they are serial.
        """
        report(f"reward model: loading vLLM {installed_version()}")
        found = read_json(directory / CONFIG)
        config = read_classifier_config(found)
        num_seqs = 1 if is_serial else batch_size
        num_blocks = num_seqs * ceil(max_length / BLOCK_SIZE) + 1
        page_bytes = 2 * config.num_kv_heads * config.head_width * 4 * BLOCK_SIZE
        required = {
            "model": str(directory),
            "runner": "pooling",
            "skip_tokenizer_init": True,
            "dtype": str(own_dtype(found)).removeprefix("torch."),
            "seed": 0,
            "enforce_eager": True,
            "max_model_len": max_length,
            "max_num_seqs": num_seqs,
            "max_num_batched_tokens": num_seqs * max_length,
            "enable_prefix_caching": False,
            "block_size": BLOCK_SIZE,
            "num_gpu_blocks_override": num_blocks,
            "disable_log_stats": True,
        }
        preferred = {
            "kv_cache_memory_bytes": num_blocks * page_bytes * config.num_layers,
            "async_scheduling": False,
            "use_tqdm_on_load": False,
        }
        with isolated():
            check_device(device)
            from vllm.v1.engine.llm_engine import LLMEngine

            keep_process_group()
            try:
                engine = LLMEngine.from_engine_args(engine_arguments(required, preferred))
                scorer = cls(engine)
                scorer(PROBE[:1])  # attention that is not supported fails in a pass
            except (ValueError, RuntimeError) as error:
                reason = str(error).strip().splitlines()[-1]
                raise InvalidValueError(
                    f"vLLM refuses the reward model {directory}: {reason}",
                    legal="a model that vLLM's attention supports",
                    remedy="reward_model.backend: torch",
                ) from error
        if is_serial:
            scorer.check_serial()
        return scorer

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """As `Scorer`."""
        with num_threads(1):  # products of more threads may have other bits
            return self._scores(sequences)

    def _scores(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        from vllm import PoolingParams

        names = [str(next(self._numbers)) for _ in sequences]
        for name, tokens in zip(names, sequences, strict=True):
            params = PoolingParams(task="classify", use_activation=False)
            self._engine.add_request(name, {"prompt_token_ids": list(tokens)}, params)
        found: dict[str, float] = {}
        try:
            while len(found) < len(names):
                found |= {output.request_id: float(output.outputs.data.item()) for output in self._engine.step()}
        finally:
            if left := [name for name in names if name not in found]:
                self._engine.abort_request(left)
        return [found[name] for name in names]

    def check_serial(self) -> None:
        """Check that scores do not depend on company. Raises LevelError."""
        alone, together = [self([each])[0] for each in PROBE], self(PROBE)
        if different := [at for at, pair in enumerate(zip(alone, together, strict=True)) if pair[0] != pair[1]]:
            raise LevelError(
                f"vLLM's scores of {len(different)} of {len(PROBE)} sequences depend on their company",
                legal="at level invariant: scores that depend on the sequence alone",
                remedy="reward_model.backend: torch",
            )
