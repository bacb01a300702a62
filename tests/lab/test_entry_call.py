"""What passes between the launcher and the process of an entry."""

import json
from pathlib import Path

from harness.recording.run_spec import CALL, EntryCall, take_call

KEY = "sk-0123456789abcdef0123"
CONFIG = {
    "seed": 7,
    "max_tokens": "eight",
    "judge": {"api_key": "abc", "url": "https://a:b@c/d", "retries": 3, "passwords": ["x"]},
    "prompts": [f"use {KEY}", {"hf_token": "abc"}],
    "output": {"wandb_api_key": ""},
}


def test_a_call_arrives_whole_and_stays_without_secrets(tmp_path: Path) -> None:
    call = EntryCall("a:b", CONFIG)
    call.write(tmp_path)
    path = tmp_path / CALL
    assert path.stat().st_mode & 0o777 == 0o600
    assert take_call(tmp_path) == call
    left = json.loads(path.read_text("utf-8"))
    assert left["config"] == {
        **CONFIG,
        "judge": {"api_key": "<redacted>", "url": "https://<redacted>@c/d", "retries": 3, "passwords": ["<redacted>"]},
        "prompts": ["use <redacted>", {"hf_token": "<redacted>"}],
    }
