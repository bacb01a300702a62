"""A run with torch's kernels imports nothing of the compiled ones, and registers none of their operations."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import json, sys
from pathlib import Path
import torch
from rlcore.entrypoint import run
from rlcore.trace import NullRecorder

CONFIG = {
    "model": {
        "width": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_width": 16, "ffn_width": 64,
        "kernels": sys.argv[1],
    },
    "task": {"name": "reverse_text", "num_prompts": 8, "num_heldout": 2},
    "warm_start": {"num_steps": 1, "batch_size": 4},
    "sampling": {"max_tokens": 4},
    "algorithm": {"name": "grpo"},
    "training": {"num_steps": 1, "prompts_per_step": 2, "group_size": 2, "microbatch_size": 4},
    "output": {"tensorboard": False, "shows_progress": False, "num_shown": 0},
}
run(CONFIG, level="invariant", directory=Path(sys.argv[2]), recorder=NullRecorder())
print(json.dumps({
    "modules": sorted(name for name in sys.modules if name.startswith("rlcore.numerics.compiled")),
    "is_registered": hasattr(torch.ops.rlcore, "rms_norm"),
}))
"""


def imported(kernels: str, directory: Path) -> tuple[list[str], bool]:
    """What a fresh interpreter has imported, and whether it has registered operations, after one step."""
    command = [sys.executable, "-c", STEPS, kernels, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return found["modules"], found["is_registered"]


def test_torchs_kernels_import_no_others(tmp_path: Path) -> None:
    assert imported("torch", tmp_path) == ([], False)


@pytest.mark.full
@pytest.mark.needs_compiler
def test_compiled_kernels_are_imported_where_they_are_asked_for(tmp_path: Path) -> None:
    modules, is_registered = imported("compiled", tmp_path)
    assert "rlcore.numerics.compiled.differentiable" in modules and is_registered
