"""What a run is made of beside its configuration, by digests: a run of other content is another run."""

import sys
from collections.abc import Mapping
from pathlib import Path

from xxhash import xxh3_128

from harness.bits.tensor_digests import combined_digest
from rlcore.checkpoint import checksum
from rlcore.config import RunConfig
from rlcore.data.rewards import load_object
from rlcore.data.tasks import Task
from rlcore.data.tools import tool_names
from rlcore.models.tokenizer import CONFIGS, FILES


def content_of(config: RunConfig, task: Task) -> dict[str, str]:
    """Return digests of prompts with their columns, and of the checkpoints, tokenizers and functions of a user.

    A function counts by the whole file of its module, and of the module that it comes from; what these import does not.
    """
    digest, reward_model = xxh3_128(), config.task.reward_model
    for prompt in (*task.train, *task.heldout):
        digest.update(repr((prompt.text, sorted(prompt.columns.items()))).encode("utf-8", "surrogatepass"))
    found = {"prompts": digest.hexdigest()}
    named = {"model.path": config.model.path, "task.reward_model.path": reward_model.path if reward_model else ""}
    named |= {"model.lora.path": config.model.lora.path} if config.model.lora else {}
    for key, path in named.items():
        files = sorted(each for each in Path(path).iterdir() if each.is_file()) if path else []
        weights = [each for each in files if each.suffix == ".safetensors" or each.name == CONFIGS[-1]]
        for kind, some in (("weights", weights), ("tokenizer", [each for each in files if each.name in FILES])):
            if some:
                found[f"{kind} of {key}"] = _combined({each.name: each.resolve() for each in some})
    algorithm, environment = config.algorithm, config.task.environment
    names = [environment.name, *tool_names(environment.arguments)] if environment else []
    names += [*config.task.rewards, getattr(algorithm, "advantage", ""), getattr(algorithm, "loss", "")]
    for name in names:
        if ":" in name:
            module, function = name.split(":")[-2:]
            own = getattr(load_object(f"{module}:{function}", "functions"), "__module__", module)
            sources = {each: getattr(sys.modules.get(each), "__file__", None) for each in (module, own)}
            found[f"source of {name}"] = _combined({each: Path(file) for each, file in sources.items() if file})
    return found


def _combined(files: Mapping[str, Path]) -> str:
    return combined_digest({name: checksum(path)["xxh3_128"] for name, path in files.items()})
