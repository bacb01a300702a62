"""An entry for tests: a bandit that learns, every recorded tensor being the one that the step goes on with.

What may be otherwise in one run than in another: `normalises` (advantages by their deviation) and `runtime.num_parts`
(how the gradient is summed: float noise). With `breaks` the step of
that number ends in an error after its gradient; with `waits_for` step 3 reads that file after its rollout.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.recording.recorder import Recorder
from harness.recording.run_spec import EntryCall
from tests.support.recorded_steps import TraceSink

ARMS, PULLS = 64, 96
ENTRY = "tests.lab.bandit_entry:run"
CONFIG: Mapping[str, Any] = {"seed": 1, "num_steps": 5, "runtime": {"num_parts": 1}}


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Any) -> None:
    """Called as every entry is."""
    weight = torch.zeros(ARMS)
    for step in range(config["num_steps"]):
        _step(step, config, weight, recorder)


def _step(step: int, config: Mapping[str, Any], weight: Tensor, recorder: Any) -> None:
    recorder.begin_step(step)
    generator = torch.Generator().manual_seed(config["seed"] * 1000 + step)
    chances = weight.softmax(-1)
    pulls = torch.multinomial(chances, PULLS, replacement=True, generator=generator)
    recorder.record("rollout", "names", [f"arm {pull}" for pull in pulls[:3].tolist()])
    recorder.record("rollout", "pulls", pulls)
    if step == 3 and config.get("waits_for"):
        Path(config["waits_for"]).read_text("utf-8")
    rewards = pulls.double() / ARMS
    recorder.record("reward", "rewards", rewards)
    advantages = rewards - rewards.mean()
    if config.get("normalises"):
        advantages = advantages / (advantages.std() + 1e-6)
    recorder.record("advantage", "advantages", advantages)
    taken = torch.nn.functional.one_hot(pulls, ARMS) - chances
    parts = (advantages.unsqueeze(-1).float() * taken).chunk(config["runtime"]["num_parts"])
    gradient = torch.stack([part.sum(0) for part in parts]).sum(0) / PULLS
    recorder.record("backward", "weight", gradient)
    if config.get("breaks") == step:
        raise ArithmeticError("the gradient is not liked")
    weight += 3.0 * gradient
    recorder.record("optimizer", "weight", weight)
    recorder.end_step(reward_mean=rewards.mean(), gradient_norm=gradient.norm())


def recorded_bandits(directory: Path, **runs: Mapping[str, object]) -> None:
    """A run for each name with these values in its configuration, recorded in this process, and a scenario."""
    (directory / "scenarios").mkdir(parents=True)
    scenario = f"about: a bandit that learns\nentry: {ENTRY}\ndeterminism: deterministic\n"
    (directory / "scenarios" / "bandit.yaml").write_text(scenario, "utf-8")
    for name, changed in runs.items():
        call = EntryCall(ENTRY, {**CONFIG, **changed}, ("runtime",))
        (directory / name).mkdir()
        sink = TraceSink(directory / name)
        call.write(directory / name)
        with suppress(ArithmeticError):  # of one that is to break
            run(call.config, level="off", directory=directory / name, recorder=Recorder(sink))
        sink.writer.close()
