"""Everything `rlharness doctor` looks at, in the order in which it is shown, each with the longest it may take."""

from harness.doctor import (
    containers,
    directories,
    environment,
    gpus,
    network,
    numerics,
    packages,
    rank_variables,
    vllm_setup,
)
from harness.doctor.examination import Check

CHECKS = (
    Check("GPUs", gpus.inspect_gpus, gpus.READ_S + gpus.IMPORT_S + 5),
    Check("network", network.inspect_network, 10, is_timed=True),
    Check("TMPDIR", directories.inspect_tmpdir, directories.TRIAL_S + 5 * directories.SURVEY_S, is_timed=True),
    Check("socket paths", directories.inspect_socket_paths, 5),
    Check("/dev/shm", directories.inspect_shared_memory, directories.SURVEY_S + 2),
    Check("ulimits", directories.inspect_limits, 5),
    Check("containment", containers.inspect_containment, 5),
    Check("control group", containers.inspect_group_limits, containers.READ_S + 2),
    Check("Ray", environment.inspect_ray, 10),
    Check("ranks", rank_variables.inspect_ranks, rank_variables.NAME_S + 3),
    Check("bits", environment.inspect_bits, 5),
    Check("versions", packages.inspect_versions, packages.READ_S + 2),
    Check("vLLM", vllm_setup.inspect_vllm, 2 * vllm_setup.READ_S + 2),
    Check("pip check", packages.inspect_pip, packages.PIP_S + 5),
)
NUMERICS = Check("numerics", numerics.inspect_numerics, numerics.SURVEY_S + 5)
"""Only where it is asked for: it keeps two cores busy for seconds, and a run that needs it looks by itself."""
