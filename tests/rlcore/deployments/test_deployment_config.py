"""Settings of a deployment: what contradicts itself is refused, and what has no effect too."""

import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlcore.config import read_config
from rlcore.entrypoint import resumed_config, train
from rlcore.errors import InvalidValueError, LevelError
from rlcore.log import NullRecorder, RunLog, announcement
from rlcore.trainers.deployment import deployed, roles_of


def payload(**section: Any) -> dict[str, Any]:
    return {"task": {"name": "reverse_text"}, "algorithm": {"name": "grpo"}, "deployment": section}


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"backend": "processes"}, "deployment.backend"),
        ({"backend": "ray", "num_ranks": 4, "sharding": "hybrid"}, "deployment.num_copies is 1"),
        ({"backend": "ray", "num_ranks": 4, "sharding": "hybrid", "num_copies": 3}, "deployment.num_copies is 3"),
        ({"backend": "ray", "num_copies": 2}, "deployment.num_copies is 2, which has no effect"),
        ({"on_worker_death": "ignore"}, "deployment.on_worker_death"),
        ({"offload": ["critic"], "offload_directory": "/"}, "deployment.offload has critic, which this run does not"),
        ({"offload": ["policy"]}, "deployment.offload from cpu to the memory of the host"),
        ({"offload_directory": "/"}, "deployment.offload_directory is '/', which has no effect"),
    ],
)
def test_what_cannot_be_or_has_no_effect_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read_config(payload(**section))
    assert said in str(refused.value)


def test_copies_that_divide_the_ranks_are_named() -> None:
    with pytest.raises(InvalidValueError, match=r"legal:\s+2, 3, 6"):
        read_config(payload(backend="ray", num_ranks=6, sharding="hybrid", num_copies=4))


def test_any_deployment_is_brought_home_by_one_setting() -> None:
    spread = {"backend": "ray", "num_ranks": 4, "sharding": "hybrid", "num_copies": 2, "gpus_per_rank": 1}
    home = read_config(payload(**{**spread, "backend": "in_process"}))
    said = announcement(home, level="invariant", num_parameters=1)
    assert "deployment: 4 ranks, simulated in this process" in said
    of_ray = announcement(read_config(payload(**spread)), level="invariant", num_parameters=1)
    assert "deployment: 4 ranks in actors of Ray, 2 copies of the weights, sharded" in of_ray
    assert "deployment" not in announcement(read_config(payload()), level="invariant", num_parameters=1)


def test_a_deployment_is_no_part_of_what_a_run_is() -> None:
    one, other = read_config(payload()), read_config(payload(backend="ray", num_ranks=4, sharding="full"))
    assert one.identity() == other.identity()


def test_every_rank_has_every_role() -> None:
    config = read_config({**payload(backend="ray", num_ranks=8), "algorithm": {"name": "ppo"}})
    assert roles_of(config) == ("policy", "critic")


def test_a_recorder_of_one_process_cannot_record_several() -> None:
    config = read_config(payload(backend="ray", num_ranks=2))
    with (
        pytest.raises(InvalidValueError, match="a recorder of one process"),
        deployed(config, "off", 8, object()),  # type: ignore[arg-type]
    ):
        pass


def test_variables_that_the_level_does_not_allow_start_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "CollnetDirect")
    with pytest.raises(LevelError, match="NCCL_ALGO=CollnetDirect"):
        train(read_config(payload(backend="ray")), level="invariant", directory=tmp_path, recorder=NullRecorder())


def test_a_restart_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    config = read_config(payload(backend="ray"))
    assert resumed_config(config, tmp_path) is config


def test_what_a_restarted_run_does_again_is_not_written_again(tmp_path: Path) -> None:
    log = RunLog(tmp_path, read_config(payload()).output)
    for step in (0, 1, 2, 1, 2, 3):
        log.step(step, {"loss": float(step)})
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [line.partition(",")[0] for line in lines] == [f'{{"step": {step}' for step in range(4)]


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_an_address_at_which_nothing_listens_is_refused_at_once() -> None:
    """Ray itself would wait for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    from rlcore.distributed.ray_cluster import ray_session

    with pytest.raises(InvalidValueError) as refused, ray_session(f"127.0.0.1:{port}", num_cpus=1):
        pass
    assert "deployment.address" in str(refused.value) and "refused" in str(refused.value)
