"""What each of the three processes builds before it works, at its level of determinism."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import uvicorn

from rlcore.asynchronous.directory import BROADCASTS, RUN, held
from rlcore.asynchronous.infer import Inference
from rlcore.asynchronous.orchestrator import Orchestrator
from rlcore.asynchronous.settings import Infer, Orch, Train, task_section
from rlcore.asynchronous.trainer import AsynchronousTrainer
from rlcore.data.tasks import make_task
from rlcore.determinism import at_level, check_level_of_device
from rlcore.memory import keep_freed_memory
from rlcore.models.checkpoints import load
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import load_tokenizer
from rlcore.numerics.probe import num_threads
from rlcore.samplers.vllm.versions import installed_version, isolated

Say = Callable[[str], None]
CONCURRENCY = 256
"""Completions that a sampler decodes together."""
NUM_THREADS = 1


def run_infer(section: Infer, say: Say) -> int:
    """Serve completions until the process is ended."""
    check_level_of_device(section.level, section.device)
    run, tokenizer, backend = Path(section.output_dir), load_tokenizer(Path(section.model)), None
    decoder = load(Path(section.model)).requires_grad_(False).to(section.device)
    length = min(section.max_model_len or decoder.config.max_length, decoder.config.max_length)
    with held(run, f"infer-{section.port}", say), _computing(section.level, decoder, length), torch.inference_mode():
        if section.backend == "vllm":
            installed_version()
            with isolated():
                from rlcore.asynchronous.vllm_backend import VllmBackend
            backend = VllmBackend(decoder, tokenizer, concurrency=CONCURRENCY, length=length, report=say)
        inference = Inference(
            decoder, tokenizer, run / BROADCASTS, concurrency=CONCURRENCY, length=length, backend=backend
        )
        host = section.host or "127.0.0.1"
        say(f"serving completions at http://{host}:{section.port}/v1, weights of {run / BROADCASTS}")
        uvicorn.run(inference.app(), host=host, port=section.port, log_level="warning", access_log=False)
    return 0


def run_orch(section: Orch, say: Say) -> int:
    """Publish batches until the last."""
    run, tokenizer = Path(section.output_dir), load_tokenizer(Path(section.model.name))
    task = make_task(
        task_section(section),
        tokenizer,
        section.seed,
        context=section.seq_len,
        num_new_tokens=section.sampling.max_tokens,
    )
    with held(run, "orch", say):
        asyncio.run(Orchestrator(section, run, task, tokenizer, say).work())
    return 0


def run_train(section: Train, say: Say) -> int:
    """Train until the last batch."""
    keep_freed_memory()
    run, decoder = Path(section.output_dir) / RUN, load(Path(section.model))
    tokenizer = load_tokenizer(Path(section.model))
    with held(run, "train", say), _computing(section.level, decoder, section.sequence_len):
        AsynchronousTrainer(section, run, decoder, tokenizer, section.level, say=say).work()
    return 0


@contextmanager
def _computing(level: str, decoder: Decoder, length: int) -> Iterator[None]:
    dtype = decoder.embedding.dtype
    with at_level(level, decoder.config, dtype=dtype, length=length, threads=(NUM_THREADS,)), num_threads(NUM_THREADS):
        yield
