"""Reasons, causes and notes of verdicts: each code with its sentence.

`trace` and `traces` are "A" and "B". A sequence of names or steps is complete; a sentence shows the first of them.
"""

from harness.bits.findings import FindingCode

_LOOK = "--trace-ops {step} names the operation"


class VerdictCode(FindingCode):
    """Codes of reasons and notes."""

    IDENTITY_DIFFERS = "identity_differs", "the configuration or the command differs (identity): {names}"
    CONTENT_DIFFERS = "content_differs", "data or functions that the configuration names differ (content): {names}"
    NUMERICS_DIFFER = "numerics_differ", "the hardware or the installed software differs (numerics): {names}"
    IDENTITY_UNKNOWN = "identity_unknown", "the identity of {trace} is unknown"
    DIGESTS_INCOMPARABLE = (
        "digests_incomparable",
        "digests of different algorithms: {num_values:value} cannot be compared",
    )
    CHAIN_BROKEN = (
        "chain_broken",
        "{trace}, rank {rank}: the chain of step {step} does not follow from the one before",
    )
    ROOT_MISMATCH = (
        "root_mismatch",
        "the roots of step {step} differ, but its values do not: a root does not match its values",
    )
    TRACE_INCOMPLETE = "trace_incomplete", "{trace}: {message}"
    NO_STEP = "no_step", "no step was recorded"
    NO_VALUE = "no_value", "no value was recorded that could differ"
    TRACE_DAMAGED = "trace_damaged", "{trace}: {message}"
    PROCESSES_MATCHED = (
        "processes_matched",
        "the processes have no ranks, and were matched by content (process of A, process of B): {numbers}",
    )
    PROCESSES_GUESSED = (
        "processes_guessed",
        "the processes have no ranks, and their matching is a guess (process of A, process of B): {numbers}",
        "set RANK and WORLD_SIZE for each process",
    )
    CURVES_OF_OTHER_PROCESSES = (
        "curves_of_other_processes",
        "the curves were not compared: each is that of its trace's process 0",
    )
    RANK_DISAGREES = (
        "rank_disagrees",
        "rank {rank} of {trace} disagrees with a lower rank on {phase} {name} of step {step}",
    )
    RANKS_MISSING = (
        "ranks_missing",
        "compared {num_compared} of {num_ranks} ranks: those with a log in both traces",
    )
    CURVE_DIFFERS = "curve_differs", "logged values differ from step {step} on, but recorded values do not: {names}"
    CURVE_MISSING = "curve_missing", "{trace}: curve.jsonl is missing or empty: logged values were not compared"
    CURVE_LINES_MISSING = (
        "curve_lines_missing",
        "{trace}: curve.jsonl has no line for step {steps}: its logged values were not compared",
    )
    CURVE_DTYPES_DIFFER = (
        "curve_dtypes_differ",
        "logged values of {names} at step {step} have different dtypes ({a} in A, {b} in B): not compared",
    )
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
    """Codes of likely causes of a first difference, by what the traces show; the most likely one first."""

    CODE_DIFFERS = "code_differs", "the code differs: {names}"
    ENVIRONMENT_DIFFERS = "environment_differs", "runtime settings differ: {names}"
    ENDED_EARLIER = (
        "ended_earlier",
        "{trace} ended after step {step}, and all that both have is equal: look for a limit of time, a condition on a"
        " value that is not recorded, and the length of the data",
    )
    SEED_DIFFERS = (
        "seed_differs",
        "{names} differed before the first step: seeded from a value that differs (the clock, os.urandom, a process"
        " number), or not at all",
    )
    SEED_OF_HASH = (
        "seed_of_hash",
        "{names} differed before the first step: seeded from a value that differs, or not at all. hash() of a text"
        " is such a value, since PYTHONHASHSEED is not set; so are the clock and os.urandom",
    )
    GENERATOR_DIFFERS = (
        "generator_differs",
        "the state of {names} has differed since step {step}: one run drew more random numbers, or set a state",
    )
    BATCH_OF_WORKER = (
        "batch_of_worker",
        "batch {index} was made by DataLoader worker {worker} of {num_workers}, its seed is equal: look at"
        " __getitem__, and at generators that the worker does not seed",
    )
    WORKER_SEED_DIFFERS = (
        "worker_seed_differs",
        "batch {index} was made by DataLoader worker {worker} of {num_workers}, its seed differs: look at the"
        " generator of the loader, and at torch.manual_seed",
    )
    ORDER_OF_SET = (
        "order_of_set",
        "the same elements in a different order, while the generators are equal: the order of a set of texts, since"
        " PYTHONHASHSEED is not set (--level deterministic sets it), or of files in a directory",
    )
    ORDER_DIFFERS = (
        "order_differs",
        "the same elements in a different order: files in a directory (os.listdir, glob), results of threads or"
        " processes in order of arrival",
    )
    DATA_DIFFER = (
        "data_differ",
        "the data differ, while the generators that were recorded are equal: the order of files or sets, a generator"
        " that was not recorded, the clock, or the data themselves",
    )
    WRITTEN_OUTSIDE = (
        "written_outside",
        "{name} was written outside the optimizer, in {traces}: after its last step, before this forward pass",
    )
    LEFT_IN_EVAL = (
        "left_in_eval",
        "{trace} left {name} as it was after step {since}: its module was in eval mode, or saw no batch",
    )
    WEIGHTS_DIFFER = (
        "weights_differ",
        "the run began with different weights, while the generators are equal: a different checkpoint, or an"
        " initialisation that draws in a different order",
    )
    INPUTS_NOT_RECORDED = (
        "inputs_not_recorded",
        "no batch of this step was recorded, so its inputs may differ already: order of data or files, augmentation,"
        " results in order of arrival; then dropout and kernels",
        _LOOK,
    )
    FORWARD_DIFFERS = (
        "forward_differs",
        "batches and weights are equal: look for a mode (train, eval), dropout, unrecorded state, a cast, a kernel",
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
    LOGGED_TOO = (
        "logged_too",
        "logged values that are no loss differ too: {names}. What they are computed from was not recorded",
    )
    BACKWARD_DIFFERS = (
        "backward_differs",
        "the loss is equal: look for sums by atomics or threads (index_put, scatter_add), recomputed dropout, a"
        " detached, scaled or stale gradient",
        _LOOK,
    )
    SETTINGS_DIFFER = "settings_differ", "settings of the optimizer differ: {names}. Look at its scheduler"
    STATE_DIFFERS = (
        "state_differs",
        "gradients and settings are equal: state of the optimizer that was lost or restored, a fused against a plain"
        " implementation",
    )
    SYNC_DIFFERS = "sync_differs", "the trained weights are equal: weights that did not arrive, or were cast"
