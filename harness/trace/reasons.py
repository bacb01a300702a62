"""Reasons, causes and notes of verdicts: each code with its sentence.

`trace` and `traces` are "A" and "B". A sequence of names or steps is complete; a sentence shows the first of them.
"""

from harness.bits.findings import FindingCode

_LOOK = "--trace-ops {step} names the operation"
_WORKER = "batch {index} was made by DataLoader worker {worker} of {num_workers}"
_SEEDED = "{names} differed before the first step: seeded from a value that differs, or not at all"
_GUESSED = "the processes have no ranks, and were matched {}: (process of A, process of B) {{numbers}}"


class VerdictCode(FindingCode):
    """Codes of reasons and notes."""

    IDENTITY_DIFFERS = "identity_differs", "the configuration or the command differs (identity): {names}"
    CONTENT_DIFFERS = "content_differs", "data or functions that the configuration names differ (content): {names}"
    NUMERICS_DIFFER = "numerics_differ", "the hardware or the installed software differs (numerics): {names}"
    IDENTITY_UNKNOWN = "identity_unknown", "the identity of {trace} is unknown"
    DIGESTS_INCOMPARABLE = "digests_incomparable", "digests of different algorithms: {num_values:value} not compared"
    CHAIN_BROKEN = "chain_broken", "{trace}, rank {rank}: the chain of step {step} does not follow from the one before"
    ROOT_MISMATCH = "root_mismatch", "the roots of step {step} differ, but not its values: a root does not match them"
    TRACE_INCOMPLETE = "trace_incomplete", "{trace}: {message}"
    NO_STEP = "no_step", "no step was recorded"
    NO_VALUE = "no_value", "no value was recorded that could differ"
    TRACE_DAMAGED = "trace_damaged", "{trace}: {message}"
    PROCESSES_MATCHED = "processes_matched", _GUESSED.format("by content")
    PROCESSES_GUESSED = "processes_guessed", _GUESSED.format("by a guess"), "set RANK and WORLD_SIZE for each process"
    CURVES_OF_OTHER_PROCESSES = "curves_of_other_processes", "the curves, of different processes, were not compared"
    RANK_DISAGREES = (
        "rank_disagrees",
        "{trace}: rank {rank} disagrees with a lower one on {phase} {name}, step {step}",
    )
    RANKS_MISSING = "ranks_missing", "compared {num_compared} of {num_ranks} ranks: those with a log in both traces"
    CURVE_DIFFERS = "curve_differs", "logged values differ from step {step} on, but recorded values do not: {names}"
    CURVE_MISSING = "curve_missing", "{trace}: curve.jsonl is missing or empty: logged values were not compared"
    CURVE_LINES_MISSING = "curve_lines_missing", "{trace}: curve.jsonl has no line for step {steps}: not compared"
    CURVE_DTYPES_DIFFER = "curve_dtypes_differ", "logged {names} at step {step} is {a} in A, {b} in B: not compared"
    OPERATIONS_OF_OTHER_STEPS = (
        "operations_of_other_steps",
        "operations were recorded for step {steps}, but the first difference is in step {first_step}",
    )
    RESUMED = (
        "resumed",
        "B's step 0 is A's step {shift}: compared steps {first_step} to {last_step}, without the curves;"
        " differing fields of the identity that were not compared: {names}",
    )
    RESUMED_AT = (
        "resumed_at",
        "B begins with the weights that A had before step {shift}, as a resumed run does: --shift {shift} aligns it",
    )


class CauseCode(FindingCode):
    """Codes of likely causes of a first difference, by what the traces show."""

    CODE_DIFFERS = "code_differs", "the code differs: {names}"
    ENVIRONMENT_DIFFERS = "environment_differs", "runtime settings differ: {names}"
    ENDED_EARLIER = (
        "ended_earlier",
        "{trace} ended after step {step}, and all that both have is equal: look for a limit of time, a condition on a"
        " value that is not recorded, and the length of the data",
    )
    SEED_DIFFERS = "seed_differs", f"{_SEEDED} (the clock, os.urandom, a process number)"
    SEED_OF_HASH = "seed_of_hash", f"{_SEEDED} (hash() of a text, since PYTHONHASHSEED is not set, or the clock)"
    GENERATOR_DIFFERS = (
        "generator_differs",
        "the state of {names} has differed since step {step}: one run drew more random numbers, or set a state",
    )
    BATCH_OF_WORKER = (
        "batch_of_worker",
        f"{_WORKER}, its seed is equal: look at __getitem__, and at generators that the worker does not seed",
    )
    WORKER_SEED_DIFFERS = (
        "worker_seed_differs",
        f"{_WORKER}, its seed differs: look at the generator of the loader, and at torch.manual_seed",
    )
    ORDER_OF_SET = (
        "order_of_set",
        "the same elements in a different order: a set of texts, since PYTHONHASHSEED is not set, or files",
        "--level deterministic sets the hash seed",
    )
    ORDER_DIFFERS = (
        "order_differs",
        "the same elements in a different order: files (os.listdir, glob), or results in order of arrival",
    )
    DATA_DIFFER = (
        "data_differ",
        "the data differ, while the recorded generators are equal: the order of files or sets, a generator that was"
        " not recorded, the clock, or the data themselves",
    )
    REWARD_OF_HASH = (
        "reward_of_hash",
        "the completions are equal: the reward depends on the order of a set of texts, since PYTHONHASHSEED is not set,"
        " or on the clock, files, a server",
        "--level deterministic sets the hash seed",
    )
    REWARD_DIFFERS = (
        "reward_differs",
        "the completions are equal: the reward depends on the clock, files, a server, or a generator of its own",
    )
    WRITTEN_OUTSIDE = (
        "written_outside",
        "{name} was written outside the optimizer, in {traces}: after its last step, before this forward pass",
    )
    WEIGHTS_DIFFER = (
        "weights_differ",
        "the runs began with different weights, and equal generators: a checkpoint, or the order of initialisation",
    )
    INPUTS_NOT_RECORDED = (
        "inputs_not_recorded",
        "no batch of this step was recorded, so its inputs may differ already: order of files or sets, augmentation,"
        " results in order of arrival; then dropout and kernels",
        _LOOK,
    )
    FORWARD_DIFFERS = (
        "forward_differs",
        "batches and weights are equal: look for dropout, unrecorded state, a cast, a kernel",
        _LOOK,
    )
    GRADIENT_CHANGED = (
        "gradient_changed",
        "backward left this gradient equal in both; it changed between backward and the optimizer's step, in"
        " {traces}: clipping, unscaling, or a reduction over ranks",
    )
    ATOMICS = (
        "atomics",
        "{operation} adds in an order of its own (atomics or threads), {at}",
        "--level deterministic uses a deterministic kernel if torch has one",
    )
    OPERATION_DIFFERS = "operation_differs", "the first operation that differs is {operation}, {at}"
    LOGGED_TOO = "logged_too", "{names} differs too, and what it is computed from was not recorded"
    BACKWARD_DIFFERS = (
        "backward_differs",
        "all before it is equal: look for sums by atomics or threads (index_put, scatter_add), recomputed dropout, a"
        " detached, scaled or stale gradient",
        _LOOK,
    )
    SETTINGS_DIFFER = "settings_differ", "settings of the optimizer differ: {names}. Look at its scheduler"
    STATE_DIFFERS = (
        "state_differs",
        "gradients and settings are equal: look for lost or restored state of the optimizer, or fused against plain",
    )
    SYNC_DIFFERS = "sync_differs", "the trained weights are equal: weights that did not arrive, or were cast"
