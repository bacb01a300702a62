"""Everything `rlharness doctor` looks at, in the order in which it is shown, each with the longest it may take."""

from harness.doctor import containers, directories, environment, gpus, network, numerics, packages, rank_variables
from harness.doctor.examination import Check

CHECKS = (
    Check("cards", gpus.look_at_cards, gpus.READ_S + gpus.IMPORT_S + 5),
    Check("network", network.look_at_network, 10, is_timed=True),
    Check("TMPDIR", directories.look_at_tmpdir, directories.TRIAL_S + 5 * directories.SURVEY_S, is_timed=True),
    Check("socket paths", directories.look_at_socket_paths, 5),
    Check("/dev/shm", directories.look_at_shared_memory, directories.SURVEY_S + 2),
    Check("ulimits", directories.look_at_limits, 5),
    Check("containment", containers.look_at_containment, 5),
    Check("control group", containers.look_at_group_limits, containers.READ_S + 2),
    Check("Ray", environment.look_at_ray, 10),
    Check("ranks", rank_variables.look_at_ranks, rank_variables.NAME_S + 3),
    Check("bits", environment.look_at_bits, 5),
    Check("versions", packages.look_at_versions, packages.READ_S + 2),
    Check("declared ranges", packages.look_at_declared, packages.READ_S + 2),
    Check("pip check", packages.look_at_pip, packages.PIP_S + 5),
)
NUMERICS = Check("numerics", numerics.look_at_numerics, numerics.SURVEY_S + 5)
"""Only where it is asked for: it keeps two cores busy for seconds, and a run that needs it looks by itself."""
