"""The engine computes what GRPO written as one loop computes, to the bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import type_command
from tests.support.suite_runs import ROOT

SOURCES = {
    "embedding": ("model.embed_tokens",),
    "norm": ("model.norm",),
    "head": ("lm_head",),
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "out": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""A parameter of the engine -> tensors of a checkpoint, whose rows it has one after the other."""


@pytest.mark.full
def test_a_run_is_that_of_one_loop(tmp_path: Path) -> None:
    words = ("train", "grpo_sorting", "--size", "tiny", "--set", "warm_start.num_steps=0", "--out", "run")
    done = type_command(tmp_path, *words)
    assert done.code == ExitCode.OK, done.stderr
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tmp_path / "run/call.json").read_text())["config"]))
    level = json.loads((tmp_path / "run/run.json").read_text())["level_env"]
    command = [sys.executable, "-m", "tests.support.engine_page", str(tmp_path / "config.json"), str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | level, check=True)

    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    curve = [{name: line[name] for name in ("loss", "grad_norm")} for line in lines if "loss" in line]
    assert curve == json.loads((tmp_path / "curve.json").read_text())
    assert len(curve) == 3 and all(each["grad_norm"] > 0 for each in curve)
    found = load_file(tmp_path / "run/checkpoints/step-000003/policy/model.safetensors")
    page = load_file(tmp_path / "policy.safetensors")
    assert len(page) >= 10
    for name, expected in page.items():
        owner, _, short = name.rpartition(".")
        prefix = f"model.{owner}." if owner else ""
        parts = [found.pop(f"{prefix}{source}.weight") for source in SOURCES[short]]
        assert torch.equal(torch.cat(parts), expected), name
    assert not found
