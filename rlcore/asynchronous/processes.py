"""What each of the three processes builds before it works, at its level of determinism."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket

import torch
import uvicorn

from harness.bits.tensor_digests import weights_digest
from rlcore.asynchronous.directory import BATCHES, BROADCASTS, RUN, claim, compare_settings, held, is_there
from rlcore.asynchronous.infer import Inference
from rlcore.asynchronous.orchestrator import Orchestrator
from rlcore.asynchronous.settings import Infer, Orch, Train, keys_of_env, task_section
from rlcore.asynchronous.trainer import AsynchronousTrainer
from rlcore.data.tasks import make_task
from rlcore.determinism import at_level, check_level_of_device
from rlcore.errors import InvalidValueError
from rlcore.log import Recorder
from rlcore.memory import keep_freed_memory
from rlcore.models.checkpoints import load
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import load_tokenizer
from rlcore.numerics.probe import num_threads
from rlcore.samplers.vllm.versions import installed_version, isolated
from rlcore.seeds import key

Say = Callable[[str], None]
CONCURRENCY = 256
"""Completions that a sampler decodes together."""
NUM_THREADS = 1
AS_RECORDED = "write the recorded values into orch.yaml, or name another schedule"


def run_infer(section: Infer, say: Say) -> int:
    """Serve completions until the process is ended. Raises InvalidValueError, LevelError."""
    check_level_of_device(section.level, section.device)
    run, host, port, backend = Path(section.output_dir), section.host, section.port, None
    wanted = "float32" if section.device == "cpu" else "bfloat16"
    if section.dtype not in ("auto", wanted):
        raise InvalidValueError(f"dtype {section.dtype} on {section.device}", legal=f"auto, or {wanted}: as is trained")
    with held(run, f"infer-{port}", say):
        _check_port(host, port)
        tokenizer = load_tokenizer(Path(section.model))
        decoder = load(Path(section.model), dtype=getattr(torch, wanted), device=section.device).requires_grad_(False)
        length = min(section.max_model_len or decoder.config.max_length, decoder.config.max_length)
        sizes = {"concurrency": CONCURRENCY, "length": length}
        with _computing(section.level, decoder, length, say), torch.inference_mode():
            if section.backend == "vllm":
                installed_version()
                with isolated():
                    from rlcore.asynchronous.vllm_backend import VllmBackend
                backend = VllmBackend(decoder, tokenizer, **sizes, report=say)
            inference = Inference(decoder, tokenizer, run / BROADCASTS, **sizes, backend=backend)
            say(f"serving completions at http://{host}:{port}/v1, weights of {run / BROADCASTS}")
            config = uvicorn.Config(inference.app(), host, port, log_level="warning", timeout_graceful_shutdown=1)
            uvicorn.Server(config).run()
    return 0


def _check_port(host: str, port: int) -> None:
    with socket() as probe:
        try:
            probe.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            probe.bind((host, port))
        except OSError as error:
            what = f"port {port} of {host} cannot be had: {error.strerror}"
            raise InvalidValueError(what, remedy="another port, and client.base_url of orch.yaml with it") from error


def run_orch(section: Orch, say: Say) -> int:
    """Publish batches until the last."""
    run, tokenizer = Path(section.output_dir), load_tokenizer(Path(section.model.name))
    sizes = {"context": section.seq_len, "num_new_tokens": section.sampling.max_tokens}
    with keys_of_env():
        task = make_task(task_section(section), tokenizer, section.seed, **sizes)
    with held(run, "orch", say):
        left_out = {"client", "ckpt", "report_to", "max_steps", "model", "output_dir"}
        prompts = f"{key('prompts', *(prompt.id for prompt in task.train)):016x}"
        settings = {**section.model_dump(mode="json", exclude=left_out), "prompts": prompts}
        if section.mode == "replay" and is_there(Path(section.schedule) / BATCHES, 0):
            own = {"mode", "schedule", "max_async_level"}
            compare_settings(Path(section.schedule), "orch", settings, left_out=own, remedy=AS_RECORDED)
        claim(run, "orch", settings)
        asyncio.run(Orchestrator(section, run, task, tokenizer, say).work())
    return 0


def run_train(
    section: Train, say: Say, recorder: Recorder | None = None, tend: Callable[[], None] = lambda: None
) -> int:
    """Train until the last batch; `tend` is called while there is none."""
    keep_freed_memory()
    run, dtype = Path(section.output_dir) / RUN, torch.float32 if section.recipe == "fp32" else torch.bfloat16
    decoder = load(Path(section.model), dtype=dtype, device=section.device)
    tokenizer = load_tokenizer(Path(section.model))
    left_out = {"logging_steps", "model", "output_dir", "device", "seed", "max_async_level"}
    if section.lr_scheduler_type == "constant":  # a run may be made longer
        left_out.add("max_steps")
    with held(run, "train", say), _computing(section.level, decoder, section.sequence_len, say):
        weights = weights_digest(dict(decoder.named_parameters()))
        claim(run, "train", {**section.model_dump(mode="json", exclude=left_out), "weights": weights})
        AsynchronousTrainer(section, run, decoder, tokenizer, section.level, recorder=recorder, say=say).work(tend)
    return 0


@contextmanager
def _computing(level: str, decoder: Decoder, length: int, say: Say) -> Iterator[None]:
    say(f"level {level}: looks at this machine's operations" if level == "invariant" else f"level {level}")
    dtype = decoder.embedding.dtype
    with at_level(level, decoder.config, dtype=dtype, length=length, threads=(NUM_THREADS,)), num_threads(NUM_THREADS):
        yield
