"""Everything `rlharness doctor` looks at, in the order in which it is shown, each with the longest it may take."""

from harness.machine.doctor import cards, containers, environment, network, numerics, packages, places, rank_variables
from harness.machine.doctor.examination import Check

CHECKS = (
    Check("cards", cards.look_at_cards, cards.READ_S + cards.IMPORT_S + 5),
    Check("network", network.look_at_network, 10, is_timed=True),
    Check("TMPDIR", places.look_at_tmpdir, places.TRIAL_S + 5 * places.SURVEY_S, is_timed=True),
    Check("socket paths", places.look_at_socket_paths, 5),
    Check("/dev/shm", places.look_at_shared_memory, places.SURVEY_S + 2),
    Check("ulimits", places.look_at_limits, 5),
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
