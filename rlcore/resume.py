"""The state that a resumed run needs: weights, the optimizers' state, an adaptive coefficient. All else follows from
the configuration and the number of the step: order, noise and learning rate have no state.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.checkpoint import Checkpoint, Writer, load, load_newest, save
from rlcore.config import RunConfig
from rlcore.errors import CheckpointError
from rlcore.models.adapters import load as load_adapters
from rlcore.models.adapters import save as save_adapters
from rlcore.models.checkpoints import load as load_decoder
from rlcore.models.checkpoints import save as save_decoder
from rlcore.seeds import key
from rlcore.weights.source import LiveWeights, digest_of

if TYPE_CHECKING:
    from rlcore.train import TrainState

DIRECTORY = "checkpoints"
"""Below a run's."""


def save_checkpoint(state: "TrainState", directory: Path, step: int) -> Path:
    """Write what the run needs to begin with `step`; the policy as Hugging Face's tools load it."""

    def write_policy(path: Path) -> None:
        decoder, model = state.decoder, state.config.model
        save_adapters(decoder, path, base=model.path) if model.lora else save_decoder(decoder, path)
        state.tokenizer.save(path)

    digests = state_digests(state, step)
    values = {**_values(state), "state": digests}
    writers: dict[str, Writer] = {f"{model.name}_state": model.write_state for model in state.models}
    keep = state.config.output.keep_checkpoints
    path = save(directory, step, values, {"policy": write_policy, **writers}, keep=keep)
    check_written(state, path, digests["weights of the policy"])
    return path


def check_written(state: "TrainState", path: Path, digest: str) -> None:
    """Check that the values of a checkpoint, and the policy as others load it, are those of the live run.

    A resumed run does not read the policy's directory: other programs do. Raises CheckpointError.
    """
    weights = state.policy.weights().describe()
    if state.config.model.lora:
        exported = load_adapters(state.decoder, path / "policy")
    else:
        exported = load_decoder(path / "policy", dtype=weights.dtype)
    found = {**load(path).values, "model": exported.config, "weights": digest_of(LiveWeights(exported))}
    own = {**_values(state), "model": weights.config, "weights": digest}
    if wrong := [name for name, value in own.items() if found[name] != value]:
        raise CheckpointError(
            f"{path} has {wrong[0]} {found[wrong[0]]!r:.300}",
            legal=f"{own[wrong[0]]!r:.300}, as the run has it",
            remedy="write every digit: a resumed run would continue with another value",
        )
    if not state.tokenizer.is_saved_in(path / "policy"):
        raise CheckpointError(
            f"{path / 'policy'} has another tokenizer than the run",
            legal="the tokenizer that has encoded the prompts",
            remedy="look at its save(): another program would give tokens other numbers",
        )


def resume(state: "TrainState", run: Path) -> Checkpoint:
    """Put the newest whole checkpoint of an earlier run into the state; its `step` is the one to begin with.

    With `output.resume_step` the newest that is no later. Raises CheckpointError where there is none, or it is of a
    run of another meaning.
    """
    at_most = state.config.output.resume_step
    found = load_newest(run / DIRECTORY if (run / DIRECTORY).is_dir() else run, at_most)
    if found is None:
        which = "" if at_most is None else f" of step {at_most} or before it"
        raise CheckpointError(f"{run} has no whole checkpoint{which}", remedy="start a new run, without output.resume")
    _check_identity(found, state)
    for model in state.models:
        model.read_state(found.path / f"{model.name}_state")
    state.kl_coef = found.values["kl_coef"]
    return found


def state_digests(state: "TrainState", step: int) -> dict[str, str]:
    """What a run is when it begins with a step, by digests: weights, optimizers, and the prompts that come next."""
    digests = {}
    for model in state.models:
        digests[f"weights of the {model.name}"] = digest_of(model.weights())
        if model is not state.reference:
            digests[f"optimizer of the {model.name}"] = model.optimizer_digest()
    ids = (prompt.id for prompt in state.prompts_of(step))
    return {**digests, "next prompts": f"{key('next prompts', *ids):016x}"}


def check_state(state: "TrainState", found: Checkpoint) -> None:
    """Check that the resumed state is bitwise equal to the one that was written; raise CheckpointError."""
    written = {**found.values.get("state", {}), "KL coefficient": str(found.values["kl_coef"])}
    now = {**state_digests(state, found.step), "KL coefficient": str(state.kl_coef)}
    if differing := sorted(name for name in written.keys() | now.keys() if written.get(name) != now.get(name)):
        raise CheckpointError(
            f"the state resumed from {found.path} is not the state that was written: {', '.join(differing)} differ",
            legal="the state that was written",
            remedy="check that the task has the data of the original run; if it has, this is a bug",
        )


def _values(state: "TrainState") -> dict[str, Any]:
    identity = {**state.config.identity(), "content": dict(state.content)}
    return {"identity": identity, "level": state.level, "kl_coef": state.kl_coef}


def _check_identity(found: Checkpoint, state: "TrainState") -> None:
    """With a constant learning rate a run may be made longer; else its length is part of what it is."""
    ours = _flat(_values(state)["identity"])
    theirs = _flat({"content": state.content, **found.values["identity"]})  # earlier versions wrote none
    parts = {name: type(getattr(state.config, name)).model_construct() for name in ("task", "algorithm", "warm_start")}
    defaults = _flat(RunConfig.model_construct(**parts).identity())  # of settings that they did not have
    theirs |= {name: defaults[name] for name in ours.keys() - theirs.keys() if name in defaults}
    if state.config.optimizer.schedule == "constant":
        theirs.pop("training.num_steps", None)
        ours.pop("training.num_steps", None)
    theirs["level"], ours["level"] = found.values["level"], state.level
    if differing := sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)):
        name = differing[0]
        raise CheckpointError(
            f"{found.path} is of another run: {', '.join(differing)} differ"
            f" ({name} was {theirs.get(name)!r}, and is {ours.get(name)!r})",
            remedy="the settings and files it was written with, or a run of its own from its weights: model.path",
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
