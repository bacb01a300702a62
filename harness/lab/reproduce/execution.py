"""A bundle as a recorded run of one step: checked, trusted, unpacked.

    FILE ─▶ checked ─▶ trusted ─▶ unpacked: a recorded run ─▶ reproduced as any other

A bundle brings data alone. Before anything of it is unpacked or opened, what its call names is compared with the
scenarios here; what none of them names needs --trust.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from harness.bits.errors import BundleError
from harness.bits.text import path_text
from harness.lab.experiments.bundles.archive import Bundle, check_call, open_bundle
from harness.lab.experiments.bundles.making import checkpoint_digest
from harness.lab.experiments.flat_config import flattened
from harness.lab.experiments.launcher import (
    LaunchContext,
    Launcher,
    Run,
    TitledDisplay,
    Variant,
    open_launcher,
    record_variants,
)
from harness.lab.experiments.preparation import OutDirectory, place_of
from harness.lab.experiments.recorded_run import CHECKPOINTS, RecordedRun, read_recorded_run
from harness.lab.experiments.trust import Unnamed, check_trust, scenarios_here, unnamed_in
from harness.lab.reproduce.comparison import Repeated, Reproduction, classify_other, compare_step
from harness.lab.reproduce.plan import StepPlan
from harness.process.invocation import Invocation
from harness.recording.entry_call import CALL

UNPACKED = "bundle"
_FUNCTION = re.compile(r'"?(\w+:)?[A-Za-z_][\w.-]*:[A-Za-z_]\w*"?', re.ASCII)


def trusted_bundle(invocation: Invocation, name: str, *, is_trusted: bool) -> Bundle:
    """Return the bundle in a file, whose step is going to be run.

    Raises BundleError for any other file, and UsageError for one that would use what no scenario here names, unless it
    is trusted.
    """
    bundle = open_bundle(place_of(invocation.cwd, name))
    call = check_call(bundle.read(CALL))
    found = [*unnamed_in(call, scenarios_here(invocation.cwd)), *_checkpoint_of(bundle)]
    check_trust(path_text(bundle.path), found, invocation, is_trusted=is_trusted)
    return bundle


def unpacked(bundle: Bundle, directory: Path) -> RecordedRun:
    """The run of a bundle, in a directory that is new; HarnessError for one that is not whole."""
    bundle.unpack(directory)
    if (named := bundle.head.checkpoint) is not None:
        _bring(Path(named.path), named.digest, directory / CHECKPOINTS / f"step-{bundle.head.start or 0:06}")
    return read_recorded_run(directory)


def _checkpoint_of(bundle: Bundle) -> list[Unnamed]:
    """The checkpoint that a bundle names; whoever has made the bundle has chosen that path."""
    return [] if bundle.head.checkpoint is None else [Unnamed("checkpoint", bundle.head.checkpoint.path)]


def _bring(path: Path, digest: str, target: Path) -> None:
    """Link the checkpoint that a bundle names to where its run has it; BundleError where it is not the same."""
    try:
        found = checkpoint_digest(path) if path.is_dir() else ""
        if found == digest:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path.resolve(), target_is_directory=True)
            return
    except OSError as error:
        raise BundleError(
            f"the checkpoint {path} cannot be read: {error.strerror}",
            legal="a directory that this user can read",
            remedy="copy it to where it can be read, or have the bundle made without --reference-checkpoint",
        ) from None
    raise BundleError(
        f"the bundle names a checkpoint, {path}, which is {'another one' if found else 'not there'}",
        legal=f"the checkpoint of digest {digest}",
        remedy="copy it there, or have the bundle made without --reference-checkpoint",
    )


def notes_on(run: RecordedRun, repeated: Repeated) -> list[str]:
    """Say which code was called, and what explains a step that did not come out again."""
    named = {text.strip('"') for text in _texts(flattened(run.entry_call.config)) if _FUNCTION.fullmatch(text)}
    called = ", ".join([run.entry_call.entry, *sorted(named - {run.entry_call.entry})])
    notes = [f"the code came from this machine, not from the bundle: {called}"]
    different = repeated.different
    if different is not None:
        found = [each.name for part in ("content", "numerics") for each in different.fingerprints.get(part, ())]
        if found:
            notes.append(f"bits cannot be equal if these differ: {', '.join(found)}")
        elif "subject" in different.fingerprints:
            notes.append("numerics are equal, the code differs: compare its commit and its uncommitted changes")
        else:
            notes.append("the fingerprints are equal: the run itself is not reproducible")
    return notes


def _texts(flat: Mapping[str, str]) -> list[str]:
    """Every text among the values, those in lists too."""
    return [text for value in flat.values() for text in re.findall(r'"[^"]*"', value)]


async def reproduce(
    plan: StepPlan, other: StepPlan | None, out: OutDirectory, place: LaunchContext, display: TitledDisplay
) -> Reproduction:
    """Run the steps of a plan again, and those of another run's, in directories below `out`.

    Raises UsageError where an entry refuses its run before the first step.
    """
    with open_launcher(place, display) as launcher:
        runs = await _record(plan, launcher, out, 1, display)
        is_set_against = other is not None and not launcher.interrupted_by and bool(runs[0].recording.ranks)
        others = await _record(other, launcher, out, 2, display) if other and is_set_against else []
        interrupted_by = launcher.interrupted_by
    repeated = compare_step(plan, runs)
    against = None if other is None or not others else classify_other(repeated, compare_step(other, others))
    return Reproduction(repeated, out.path, against, interrupted_by=interrupted_by)


async def _record(
    plan: StepPlan, launcher: Launcher, out: OutDirectory, number: int, display: TitledDisplay
) -> list[Run]:
    """Record the run of a plan, and the one with operations; UsageError where its entry refuses to begin."""
    whose = "" if number == 1 else " of the other run"
    steps = f"step {plan.step}" if plan.first == plan.step else f"steps {plan.first} to {plan.step}"
    variants = [Variant(plan.run_spec, number, f"repetition of {steps}{whose}")]
    if plan.has_operations:
        variants.append(Variant(plan.with_operations, number, f"repetition of {steps}{whose}, with operations"))

    def show_title(variant: Variant) -> None:
        display.title = variant.title

    return await record_variants(launcher, variants, out, began=show_title, ended=display.ended)
