import json
from typing import Any

from harness.render.run_json import summary_json


def test_every_unit_and_figure_is_there_and_is_json(sample_run: Any) -> None:
    state = sample_run.tell()
    value = json.loads(json.dumps(summary_json(state, state.finished)))
    assert (value["version"], value["exit_code"], value["num_units"]) == (1, 1, 9)
    assert value["wall_s"] == 55.5
    assert value["bounding_unit"] == "tests/test_hang.py"
    assert sum(value["outcomes"].values()) == 9
    assert value["outcomes"]["timed_out"] == 1
    assert value["tests"]["skipped"] == 2
    assert [quarantined["gpu_id"] for quarantined in value["quarantined"]] == ["GPU-aaaa"]
    units = {unit["path"]: unit for unit in value["units"]}
    assert list(units) == sorted(units)
    assert len(units) == 9
    hang = units["tests/test_hang.py"]
    assert (hang["outcome"], hang["duration_s"], hang["gpu_ids"]) == ("timed_out", 32.0, ["GPU-aaaa", "GPU-bbbb"])
    assert hang["tests"] == {"unfinished": 1, "unstarted": 1}
    assert units["tests/test_wide.py"]["for_want_of_gpus"]
    assert units["tests/test_wide.py"]["need"]["gpus"] == 16
    assert units["tests/test_leaky.py"]["need_disagrees"]
    assert units["tests/test_skipped.py"]["all_skipped"]
