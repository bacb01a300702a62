"""What a run needs to go on to the bit: weights, the optimizers' state, an adaptive coefficient. All else follows from
the configuration and the number of the step: order, noise and learning rate have no state.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore.checkpoints.checkpoint import Checkpoint, load_newest, save
from rlcore.checkpoints.optimizer_state import optimizer_tensors, restore_optimizer
from rlcore.errors import CheckpointError
from rlcore.keys import key
from rlcore.models.checkpoints import load as load_decoder
from rlcore.models.checkpoints import save as save_decoder
from rlcore.recipes.rollout import prompts_of
from rlcore.train_state import Engine
from rlcore.weights.digests import weights_digest

DIRECTORY = "checkpoints"
"""Below a run's."""


def save_checkpoint(engine: Engine, directory: Path, step: int) -> Path:
    """Write what the run needs to begin with `step`; the policy as Hugging Face's tools load it."""
    tensors = {}
    for learner in engine.learners:
        named = list(learner.model.named_parameters())
        tensors[f"{learner.name}_optimizer"] = optimizer_tensors(learner.optimizer, named)
        if learner is not engine.policy:
            tensors[learner.name] = {name: parameter.detach() for name, parameter in named}
    if engine.reference is not None:
        tensors["reference"] = {name: p.detach() for name, p in engine.reference.named_parameters()}

    def write_policy(path: Path) -> None:
        save_decoder(engine.decoder, path)
        engine.tokenizer.save(path)

    values = {
        "identity": engine.config.identity(),
        "level": engine.level,
        "kl_coef": engine.kl_coef,
        "state": state_digests(engine, step),
    }
    keep = engine.config.output.keep_checkpoints
    return save(directory, step, tensors, values, keep=keep, writers={"policy": write_policy})


def resume(engine: Engine, run: Path) -> Checkpoint:
    """Put the newest whole checkpoint of an earlier run into the engine; its `step` is the one to begin with.

    With `output.resume_step` the newest that is no later. Raises CheckpointError where there is none, or it is of a
    run of another meaning.
    """
    at_most = engine.config.output.resume_step
    found = load_newest(run / DIRECTORY if (run / DIRECTORY).is_dir() else run, at_most)
    if found is None:
        which = "" if at_most is None else f" of step {at_most} or before it"
        raise CheckpointError(f"{run} has no whole checkpoint{which}", remedy="begin anew, without output.resume")
    _check_identity(found, engine)
    engine.decoder.load_state_dict(
        load_decoder(found.path / "policy", dtype=engine.decoder.embedding.dtype).state_dict()
    )
    for learner in engine.learners:
        if learner is not engine.policy:
            learner.model.load_state_dict(found.tensors[learner.name])
        state = found.tensors[f"{learner.name}_optimizer"]
        restore_optimizer(learner.optimizer, learner.model.named_parameters(), state)
    if engine.reference is not None:
        engine.reference.load_state_dict(found.tensors["reference"])
    engine.kl_coef = found.values["kl_coef"]
    return found


def state_digests(engine: Engine, step: int) -> dict[str, str]:
    """What a run is when it begins with a step, by digests: weights, optimizers, and the prompts that come next."""
    digests = {}
    for learner in engine.learners:
        named = list(learner.model.named_parameters())
        digests[f"weights of the {learner.name}"] = weights_digest(dict(named))
        digests[f"optimizer of the {learner.name}"] = weights_digest(optimizer_tensors(learner.optimizer, named))
    if engine.reference is not None:
        digests["weights of the reference"] = weights_digest(dict(engine.reference.named_parameters()))
    ids = (prompt.id for prompt in prompts_of(engine, step))
    return {**digests, "next prompts": f"{key('next prompts', *ids):016x}"}


def check_state(engine: Engine, found: Checkpoint) -> None:
    """A run that goes on is, to the bit, where the other was when it wrote the checkpoint; raises CheckpointError."""
    written = {**found.values.get("state", {}), "KL coefficient": str(found.values["kl_coef"])}
    now = {**state_digests(engine, found.step), "KL coefficient": str(engine.kl_coef)}
    if differing := sorted(name for name in written.keys() | now.keys() if written.get(name) != now.get(name)):
        raise CheckpointError(
            f"{found.path} was read, and the run is not as it was: {', '.join(differing)} differ",
            legal="the state that was written",
            remedy="see that the task's data are those of the run that is gone on from; else this is a bug",
        )


def _check_identity(found: Checkpoint, engine: Engine) -> None:
    """With a constant learning rate a run may be made longer; else its length is part of what it is."""
    theirs, ours = _flat(found.values["identity"]), _flat(engine.config.identity())
    if engine.config.optimizer.schedule == "constant":
        theirs.pop("training.num_steps", None)
        ours.pop("training.num_steps", None)
    theirs["level"], ours["level"] = found.values["level"], engine.level
    if differing := sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)):
        name = differing[0]
        raise CheckpointError(
            f"{found.path} is of another run: {', '.join(differing)} differ"
            f" ({name} was {theirs.get(name)!r}, and is {ours.get(name)!r})",
            remedy="the settings it was written with, or a run of its own from its weights: model.path",
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
