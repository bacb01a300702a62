"""Build the sampler that a configuration names; vLLM is imported only if it is that one."""

from collections.abc import Callable

from rlcore.config import RunConfig
from rlcore.errors import InvalidValueError
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import Sampler
from rlcore.samplers.replicas import replicate
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.types import Tokenizer
from rlcore.weights.canary import NUM_TOKENS


def check_sampler(config: RunConfig) -> None:
    """Check that the sampler can be used here, before anything is built. Raises InvalidValueError."""
    if config.sampler.name == "torch":
        return
    if config.model.kernels == "compiled":
        raise InvalidValueError(
            "sampler.name vllm with model.kernels compiled",
            legal="model.kernels torch: compiled attention reads a cache of whole sequences, and vLLM's is paged",
            remedy="--set sampler.name=torch keeps the bits of this run; model.kernels=torch is another run",
        )
    if config.sampler.tensor_parallel > 1:
        raise InvalidValueError(
            f"sampler.tensor_parallel {config.sampler.tensor_parallel}",
            legal="1: a product that is divided by rows adds partial sums in another order than the trainer does",
            remedy="leave it out; rlcore/VLLM.md says what was measured",
        )
    from rlcore.samplers.vllm.versions import installed_version

    installed_version()
    if config.sampler.engine == "process":
        from rlcore.samplers.vllm.plugin import check_entry_point

        check_entry_point()


def build_sampler(
    config: RunConfig, decoder: Decoder, tokenizer: Tokenizer, *, longest: int, report: Callable[[str], None]
) -> Sampler:
    """Build a sampler with a copy of the decoder, for sequences of up to `longest` tokens; or several, as one.

    `report` receives a line before what takes seconds. Raises InvalidValueError where this sampler cannot be used here.
    """
    check_sampler(config)
    section = config.sampler
    samplers = [_one(config, decoder, tokenizer, longest=longest, report=report) for _ in range(section.replicas)]
    # Engines of vLLM in one process share the context of a pass.
    return samplers[0] if len(samplers) == 1 else replicate(samplers, run_together=section.name == "torch")


def _one(
    config: RunConfig, decoder: Decoder, tokenizer: Tokenizer, *, longest: int, report: Callable[[str], None]
) -> Sampler:
    runtime, section = config.runtime, config.sampler
    options = {"concurrency": runtime.concurrency, "preempt_every": runtime.preempt_every}
    if section.name == "torch":
        return TorchSampler(decoder, tokenizer, **options)
    from rlcore.samplers.vllm.engine import Engine, EngineSettings
    from rlcore.samplers.vllm.process_engine import ProcessEngine
    from rlcore.samplers.vllm.sampler import VllmSampler

    settings = EngineSettings(
        max_length=min(decoder.config.max_length, max(longest, NUM_TOKENS)),
        concurrency=runtime.concurrency,
        block_size=section.block_size,
        num_blocks=section.num_blocks,
        max_batched_tokens=section.max_batched_tokens,
    )
    start = ProcessEngine.start if section.engine == "process" else Engine.start
    return VllmSampler(start(decoder, settings, report), tokenizer, **options)
