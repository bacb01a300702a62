"""An asynchronous run as a scenario, whose trainer is recorded: the three files are sections of its configuration."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import yaml

from rlcore.asynchronous.directory import RUN
from rlcore.asynchronous.processes import run_train
from rlcore.asynchronous.run import Family
from rlcore.asynchronous.settings import read_train
from rlcore.config import read_config
from rlcore.log import Recorder
from rlcore.models.build import build_model
from rlcore.models.checkpoints import save


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Recorder) -> None:
    """Train with inference and orchestrator in processes of their own; `model` is as in `rlcore.config`."""
    model = Path(config["model"].get("path") or directory / "model")
    if not model.exists():
        of_model = {"task": {"name": "reverse_text"}, "algorithm": {"name": "grpo"}, "model": config["model"]}
        tokenizer, decoder = build_model(read_config(of_model))
        save(decoder, model)
        tokenizer.save(model)
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {
        "train": {"model": str(model), "output_dir": str(directory), "level": level},
        "infer": {"model": str(model), "output_dir": str(directory / RUN), "level": level, "port": port},
        "orch": {"model": {"name": str(model)}, "output_dir": str(directory / RUN)},
    }
    own["orch"]["client"] = {"base_url": [f"http://127.0.0.1:{port}/v1"]}
    files = {role: directory / f"{role}.yaml" for role in own}
    for role, file in files.items():
        file.write_text(yaml.safe_dump({**config[role], **own[role]}), "utf-8")
    say = partial(print, flush=True)
    with Family({role: files[role] for role in ("infer", "orch")}, say) as family:
        run_train(read_train(files["train"])[0], say, recorder, family.tend)
        family.finish(directory / RUN)
