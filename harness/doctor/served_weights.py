"""Whether a running server holds a checkpoint: what a child computed from it, beside what the server answers."""

from dataclasses import dataclass
from math import nan

from harness.core.errors import UsageError
from harness.core.findings import Finding, Severity
from harness.core.json_lines import as_float
from harness.doctor.host import Answer, Host, module_command

CHECK = "weights"
PROGRAM = "rlcore.weights.served_checkpoint"
LIMIT_S = 1800.0
"""Two forward passes of a large checkpoint on a few cores."""
FLOAT32_LIMIT = 1e-4
"""Mean distance that summing float32 in another order may make, in nats; 5e-7 is usual."""
ROUNDINGS = 4.0
"""Mean distances of the checkpoint's own bfloat16 pass: a server may round at other operations."""
EXTRA = "pip install 'rlharness[engine]'"
_ERROR = {"what", "legal", "remedy"}
_DISTANCES = {"model", "num_tokens", "prompt", "decoded", "rounding", "shuffled"}
"""Keys of the two lines that the child may end with."""


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """What is compared."""

    checkpoint: str
    server: str
    model: str = ""
    """Name that the server has for it; empty for its only one."""


async def inspect_served_weights(host: Host, asked: ServedWeights) -> Finding:
    """Return the finding; raises UsageError for a checkpoint or a server that cannot be asked."""
    path = str((host.cwd / asked.checkpoint).absolute())
    words = (path, asked.server, *([asked.model] if asked.model else []))
    return compare_served_weights(asked, await host.ask(module_command(PROGRAM, *words), limit_s=LIMIT_S))


def compare_served_weights(asked: ServedWeights, answer: Answer) -> Finding:
    """Return the finding for the output of the child; raises UsageError for what the user can correct."""
    lines = [line for line in answer.objects() if line.keys() >= _ERROR or line.keys() >= _DISTANCES]
    if answer.problem or answer.exit_code != 0 or not lines:
        why = answer.problem or next(reversed(answer.output.split("\n")[:-1]), "") or f"exit code {answer.exit_code}"
        raise UsageError(f"the checkpoint's own forward pass failed: {why}", remedy=f"its engine is an extra: {EXTRA}")
    found = lines[-1]
    if "what" in found:
        raise UsageError(str(found["what"]), legal=str(found["legal"]), remedy=str(found["remedy"]))
    prompt, decoded = (as_float(found[name]) for name in ("prompt", "decoded"))
    by_layer = found["shuffled"] if isinstance(found["shuffled"], dict) else {}
    shuffled, of_layer = min(((as_float(distance), layer) for layer, distance in by_layer.items()), default=(nan, "?"))
    limit, rounding = _limit(prompt, as_float(found["rounding"]))
    scale = f"{rounding} explains {limit:.2g}, one shuffled layer would make {shuffled:.2g} ({of_layer})"
    subject = f"{found['model']} at {asked.server} is {prompt:.2g} nats a token from {asked.checkpoint}"
    measured = f"{subject} over {found['num_tokens']} tokens; {scale}"
    if not prompt <= limit:
        return Finding(
            CHECK,
            Severity.BROKEN,
            measured,
            breaks="every sample: the server computes with other weights, older ones or another model's",
            remedy="load the checkpoint again, then repeat this command; a sync that reported success did not arrive",
        )
    if not decoded <= max(limit, 2 * prompt):
        return Finding(
            CHECK,
            Severity.BROKEN,
            f"{measured}; tokens that it decodes after these prompts are {decoded:.2g} away",
            breaks="samples whose prompts are in the prefix cache: its keys are those of older weights",
            remedy="reset the prefix cache after each sync: POST /reset_prefix_cache, or LLM.reset_prefix_cache()",
        )
    if shuffled <= 2 * limit:
        return Finding(
            CHECK,
            Severity.WARNING,
            f"{measured}: they cannot be distinguished",
            breaks="this check alone: it would not notice a layer that is wrong",
            remedy="serve the checkpoint with --dtype float32 for the check, or compare digests by rlcore.weights",
        )
    return Finding(CHECK, Severity.FINE, measured)


def _limit(distance: float, rounding: float) -> tuple[float, str]:
    """Return the smallest limit that holds the distance, else the larger one; and the type whose rounding it is."""
    if distance <= FLOAT32_LIMIT:
        return FLOAT32_LIMIT, "float32"
    return max(ROUNDINGS * rounding, FLOAT32_LIMIT), "bfloat16"
