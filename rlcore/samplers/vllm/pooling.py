"""Reward models served by vLLM's pooling runner: its own Qwen3, Qwen2 or Llama with a score head, from a checkpoint.

Its kernels are not batch-invariant on a CPU, so that at level invariant one sequence is scored at a time.
"""

from collections.abc import Callable, Sequence
from itertools import count
from math import ceil
from pathlib import Path

from rlcore.models.checkpoints import CONFIG, own_dtype
from rlcore.models.classifier import read_classifier_config
from rlcore.models.config import read_json
from rlcore.samplers.vllm.engine import EngineProcess
from rlcore.samplers.vllm.plugin import Trainer
from rlcore.samplers.vllm.stock import check_head_width
from rlcore.samplers.vllm.versions import installed_version, isolated

BLOCK_SIZE = 32
"""Tokens of a block of its cache."""


class VllmScorer:
    """As `rlcore.rewards.reward_model.Scorer`, by an engine in a process of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        max_length: int,
        batch_size: int,
        is_serial: bool,
        is_packed: bool = True,
        device: str = "cpu",
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Start an engine for a checkpoint; `is_serial` scores one sequence at a time, whatever `batch_size` is.

        `is_packed` lets vLLM pack weights for oneDNN on a CPU. Raises InvalidValueError where vLLM cannot be used here
        or not for this model.
        """
        report(f"reward model: loading vLLM {installed_version()}")
        found = read_json(directory / CONFIG)
        config = read_classifier_config(found)
        with isolated():
            check_head_width(config.head_width, f"a reward model {directory}", "task.reward_model.backend: torch")
        num_seqs = 1 if is_serial else batch_size
        num_blocks = num_seqs * ceil(max_length / BLOCK_SIZE) + 1
        page_bytes = 2 * config.num_kv_heads * config.head_width * 4 * BLOCK_SIZE
        arguments = {
            "model": str(directory),
            "runner": "pooling",
            "dtype": str(own_dtype(found)).removeprefix("torch."),
            "max_model_len": max_length,
            "max_num_seqs": num_seqs,
            "max_num_batched_tokens": num_seqs * max_length,
            "enable_prefix_caching": False,
            "block_size": BLOCK_SIZE,
            "num_gpu_blocks_override": num_blocks,
            "kv_cache_memory_bytes": num_blocks * page_bytes * config.num_layers,
        }
        trainer = Trainer(is_packed=is_packed)
        self._engine = EngineProcess("reward model", arguments, trainer, device=device, report=report)
        self._numbers = count()

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """As `Scorer`."""
        from vllm import PoolingParams

        names = [str(next(self._numbers)) for _ in sequences]
        found: dict[str, float] = {}
        llm = self._engine.llm
        try:
            with self._engine.alive():
                for name, tokens in zip(names, sequences, strict=True):
                    params = PoolingParams(task="classify", use_activation=False)
                    llm.add_request(name, {"prompt_token_ids": list(tokens)}, params)
            while len(found) < len(names):
                found |= {each.request_id: float(each.outputs.data.item()) for each in self._engine.outputs()}
        finally:
            if left := [name for name in names if name not in found]:
                llm.abort_request(left)
        return [found[name] for name in names]
