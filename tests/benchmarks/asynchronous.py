"""Steps per second of asynchronous GRPO over those of the synchronous page, one core for train and one for the others.

    python -m tests.benchmarks.asynchronous                   # a step of about a second; ten minutes on a quiet machine
    python -m tests.benchmarks.asynchronous --short           # a step of a tenth of a second: where it does not pay

Lengths stay, since the learning rate is small. The page has one core. Exit status 1 where a target is missed.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rlcore.data.tasks import alphabet
from rlcore.models.checkpoints import save
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.numerics.probe import machine
from tests.support.asynchronous_run import write_files

TARGETS = {"strict A=1": 1.3, "strict A=2": 1.45}
NUM_LEFT_OUT = 3
"""Steps at the begin, in which nothing is on its way yet."""
PAGE = """
import json, sys
from pathlib import Path
from rlcore.config import read_config
from rlcore.entrypoint import train
from rlcore.log import NullRecorder
config, directory = json.loads(sys.argv[1]), Path(sys.argv[2])
train(read_config(config), level="invariant", directory=directory, recorder=NullRecorder())
"""


def page_rate(model: Path, directory: Path, num_tokens: int, num_steps: int) -> float:
    """Steps per second of the synchronous page."""
    config = {
        "model": {"path": str(model)},
        "task": {"name": "reverse_text", "num_prompts": 64, "num_heldout": 1},
        "warm_start": {"num_steps": 0},
        "sampling": {"max_tokens": num_tokens},
        "algorithm": {"name": "grpo", "advantage": "dr_grpo", "loss": "masked_is", "aggregation": "token-mean"},
        "optimizer": {"learning_rate": 1e-6},
        "training": {"num_steps": num_steps, "prompts_per_step": 8, "group_size": 8, "microbatch_size": 16},
    }
    command = ["taskset", "-c", "0", sys.executable, "-c", PAGE, json.dumps(config), str(directory)]
    subprocess.run(command, check=True, env={**os.environ, "MKL_CBWR": "AUTO"}, stderr=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [sum(v for k, v in line.items() if k.startswith("seconds/") and "eval" not in k) for line in lines]
    return float(1 / statistics.mean([each for each in steps if each][NUM_LEFT_OUT:]))


def asynchronous_rate(
    model: Path, directory: Path, num_tokens: int, num_steps: int, *, mode: str, ahead: int
) -> tuple[float, str]:
    """Steps per second of the three processes, and what they say of themselves."""
    train = {
        "sequence_len": 160,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 16,
    }
    orch = {
        "env": [{"id": "reverse-text", "args": {"num_prompts": 64, "num_heldout": 1}}],
        "batch_size": 64,
        "rollouts_per_example": 8,
        "seq_len": 160,
        "max_async_level": ahead,
        "mode": mode,
        "sampling": {"max_tokens": num_tokens},
    }
    run, files = directory / "run_default", write_files(directory, model, num_steps=num_steps, train=train, **orch)
    children = {}
    try:
        for role, core in (("infer", "1"), ("orch", "1"), ("train", "0")):
            command = ["taskset", "-c", core, sys.executable, "-m", "rlcore.commands", f"grpo-{role}", str(files[role])]
            children[role] = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        assert children["train"].wait() == 0
    finally:
        for child in children.values():
            child.send_signal(signal.SIGKILL)
            child.wait()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()][NUM_LEFT_OUT:]
    step_s = statistics.mean(line["seconds/train"] + line["seconds/wait"] for line in lines)
    idle = statistics.mean(line["idle"] for line in lines)
    return 1 / step_s, f"trainer idle {idle:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="steps of a tenth of a second")
    parser.add_argument("--steps", type=int, default=15)
    given = parser.parse_args()
    width, num_layers, num_tokens = (64, 2, 16) if given.short else (128, 4, 128)
    tokenizer = CharacterTokenizer(alphabet("reverse_text"))
    config = DecoderConfig(
        "qwen3", tokenizer.vocab_size, width, num_layers, 4, 2, width // 4, 3 * width, max_length=160
    )
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}; width {width}, {num_layers} layers, 64 x {num_tokens} tokens")
    missed = False
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        save(Decoder(config).initialise(1), model)
        tokenizer.save(model)
        page = page_rate(model, Path(scratch) / "page", num_tokens, given.steps)
        print(f"page: {page:.3f} steps/s", flush=True)
        for mode, ahead in (("strict", 1), ("strict", 2), ("free", 1)):
            name = f"{mode} A={ahead}"
            rate, about = asynchronous_rate(
                model, Path(scratch) / f"{mode}{ahead}", num_tokens, given.steps, mode=mode, ahead=ahead
            )
            target = None if given.short else TARGETS.get(name)
            verdict = "" if target is None else f", target {target}: {'PASS' if rate / page >= target else 'FAIL'}"
            missed |= target is not None and rate / page < target
            print(f"{name}: {rate:.3f} steps/s, {rate / page:.2f} times the page ({about}){verdict}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
