"""Every key of Surogate's reference is implemented, mapped with a notice, or refused by its name with a reason."""

import copy
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcore.asynchronous import settings
from rlcore.errors import InvalidValueError

READ: dict[str, Callable[..., tuple[Any, list[str]]]] = {
    role: getattr(settings, f"read_{role}") for role in ("train", "infer", "orch")
}
LEAST: dict[str, str] = {
    "train": "model: m\nmax_steps: 9\n",
    "infer": "model: m\n",
    "orch": "{model: {name: m}, env: [{id: sorting}], rollouts_per_example: 4, sampling: {max_tokens: 8}}",
}
WITH: dict[str, dict[str, Any]] = {
    "temp_scheduler": {"type": "cosine", "start_temperature": 1.2, "end_temperature": 0.6},
    "eval": {"env": [{"id": "sorting"}]},
    "filters": {"type": "repetition"},
    "teacher_model": {"model": {"name": "m"}},
    "advantage": {"type": "custom", "import_path": "c.d"},
}
"""The least that a section has to hold once it is there."""
TABLE = {
    ("train", "implemented"): """
    model - m2; output_dir output runs; sequence_len 1024 64; max_steps - 40; learning_rate 0.0002 0.1;
    lr_scheduler_type linear cosine; warmup_steps 0 3; max_grad_norm 1.0 0.5; weight_decay 0.1 0.01;
    per_device_train_batch_size 2 1; gpus 1 4; logging_steps 1 5; level invariant deterministic;
    device cpu cuda; loss.kl_tau 0.0 0.1; .adv_tau 1.0 0.5; .token_mask_low 0.125 0.5; .token_mask_high 8.0 4.0;
    .geo_mask_low 0.1 0.2; .geo_mask_high 10.0 4.0; .sequence_mask_low 0.0 0.1; .sequence_mask_high 100.0 9.0;
    loss.ratio_type token sequence; .teacher_tau 0.0 0.5; .sequence_clip_high 10.0 5.0;
    lora true false; lora_rank 16 8; lora_alpha - 8.0; lora_target_modules - [q_proj]; seed 42 1;
    noise_scheduler.enabled false true; .sigma_start 0.05 0.1; .sigma_end 0.0005 0.1; .num_stages 10 4""",
    (
        "train",
        "mapped",
    ): "recipe bf16 nvfp4; zero_level 1 2; gradient_accumulation_steps 4 2; max_async_level 1 2",
    ("train", "refused"): """
    optimizer adamw adamw_8bit; qlora_fp8 false true; qlora_bnb false true; qlora_fp4 false true;
    transport_type filesystem zmq""",
    ("infer", "implemented"): """
    model - m2; output_dir outputs/run_default runs; port 8000 80; dp 1 2; enable_lora true false;
    max_lora_rank null 32; max_loras 8 4; dtype auto bfloat16; max_model_len null 64;
    backend torch vllm; device cpu cuda; level invariant deterministic; host 127.0.0.1 0.0.0.0""",
    ("infer", "mapped"): """
    host - null; enforce_eager false true; enable_prefix_caching null true; max_cpu_loras 100 9;
    gpu_memory_utilization 0.9 0.5""",
    ("infer", "refused"): """
    tp 1 2;
    trust_remote_code false true; weight_broadcast_type filesystem nccl; reasoning_parser null qwen3; dtype - half;
    enable_auto_tool_choice false true; rope_scaling null [1]""",
    ("orch", "implemented"): """
    model.name - m2; model.lora_adapter null default; .lora_rank null 16; .lora_alpha null 32.0; batch_size 128 64;
    rollouts_per_example - 8; seq_len 2048 64; max_steps null 40;
    max_async_level 1 2; max_off_policy_steps 8 4; output_dir outputs/run_default runs; seed 42 1; mode strict free;
    level invariant deterministic; sampling.max_tokens - 128; .temperature 1.0 0.7;
    client.base_url - [http://a/v1,http://b/v1]; .timeout 1200 5; .api_key_var VLLM_API_KEY KEY;
    .skip_model_check false true; ckpt.interval null 5; .keep_last null 2; .keep_interval null 10;
    report_to.interval 10 1; teacher_model.model.name - t; teacher_model.client.base_url - [http://t/v1];
    oversampling_factor 1.0 2.0; sampling.temp_scheduler.type - linear; .start_temperature - 1.0;
    .end_temperature - 0.5; buffer.online_difficulty_filtering false true; .easy_threshold null 0.9;
    .hard_threshold null 0.1; .skip_verification false true; .env_ratios null [1.0];
    advantage.type default custom; .length_weighted_mean false true; .import_path - a.b; .kwargs - {a: 1};
    filters[].type - gibberish; .enforce - true; .token_id_threshold - 9; .logprob_offset - 1.0; .window - 9;
    .prob_threshold - 0.5; eval.env[].id - sorting; eval.num_examples - 4; .rollouts_per_example - 2; .interval - 5;
    .eval_base_model - false""",
    ("orch", "mapped"): "env[].id - reverse-text; .name null words; .args - {min_length: 2}",
    ("orch", "refused"): """
    sampling.repetition_penalty 1.0 1.1; .min_tokens 0 4; .seed null 1; buffer.seed null 1; .easy_fraction 0.0 0.5;
    .hard_fraction 0.0 0.5; .hash_keys [task,prompt] [prompt]; eval.skip_eval_on_resume true false;
    .cancel_inflight_rollouts_on_eval false true; report_to.samples null true; .distributions null true;
    env[].address null tcp://a; client.elastic.hostname - a; .port - 80; .sync_interval - 1.0; ckpt.resume_step -1 4;
    .wait_for_weights_timeout null 5; .skip_progress false true; .skip_buffer false true; report_to.project - p;
    .name null n; .offline - true; rollout_transport.type filesystem zmq; .host - a; .port - 80; .hwm - 9;
    weight_broadcast.type filesystem nccl; .host - a; .port - 80; .timeout - 9; env[].args.name - sort;
    eval.env[].address null tcp://a; eval.env[].args.name - sort""",
}
"""File and fate; key (after a dot: of the section before), default ("-": none to write) and another value."""


def table_rows() -> Iterator[tuple[str, ...]]:
    """Yield file, fate, key, default and value of TABLE."""
    for (file, fate), text in TABLE.items():
        section = ""
        for key, default, value in (entry.strip().split(" ", 2) for entry in text.split(";")):
            section = section if key[0] == "." else key.rpartition(".")[0]
            yield file, fate, section + key if key[0] == "." else key, default, value


ROWS = list(table_rows())
QUICK_START = {
    "train": """{model: ./qwen, output_dir: ./outputs, gpus: 1, per_device_train_batch_size: 1, sequence_len: 2048,
    max_steps: 40, logging_steps: 1, learning_rate: 2e-4, lr_scheduler_type: constant, max_grad_norm: 1.0, lora: true,
    lora_rank: 16, lora_alpha: 32, lora_target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj],
    weight_decay: 0.01, recipe: fp8-hybrid, loss: {ratio_type: token, kl_tau: 0.0, adv_tau: 1.0, token_mask_low: 0.125,
    token_mask_high: 8.0, geo_mask_low: 0.1, geo_mask_high: 10.0}}""",
    "infer": "{model: ./qwen, enable_lora: true, max_lora_rank: 32}",
    "orch": """{model: {name: ./qwen, lora_adapter: default, lora_rank: 16, lora_alpha: 32}, env: [{id: reverse-text}],
    batch_size: 128, rollouts_per_example: 16,
    seq_len: 2048, max_steps: 40, sampling: {max_tokens: 128}}""",
}
"""The first example of the guide, with a checkpoint's directory."""
FAULTS = """
    train lora 3 | lora is 3 | ;; train lora_target_modules [x_proj] | lora_target_modules.0 is |
    train loss.geo_mask_low 11 | loss.geo_mask_low is | low
    train max_steps -1 | lr_scheduler_type is 'linear' and max_steps is -1: | ;; train model null | model is missing |
    train learning_rat 1 | unknown key learning_rat | learning_rate? ;; train gpus true | gpus is True | a valid integer
    train loss {kl_tua: 1, adv_tau: -1} | loss.adv_tau is -1; unknown key loss.kl_tua | greater than or equal to 0; kl
    orch sampling null | sampling.max_tokens is missing | ;; orch buffer 3 | buffer is 3 |
    orch rollouts_per_example 1 | rollouts_per_example is 1: | 2 or more ;; orch batch_size 9 | rollouts_per | a divisor
    orch max_async_level 9 | max_off_policy_steps is 8 and max_async_level is 9: | max_async_level or more
    orch seq_len 8 | sampling.max_tokens is 8 and seq_len | below ;; orch client.base_url [] | client.base_url is | one
    orch mode replay | mode is 'replay' and | both ;; orch schedule runs | mode is 'strict' and schedule is 'runs': |
    orch env [] | env is [] |  ;; orch buffer {env_ratios: [1, 2]} | buffer.env_ratios is (1.0, 2.0): | one for each
    orch advantage {type: custom} | advantage.type is 'custom' and | both
    orch sampling.temp_scheduler {type: linear} | sampling.temp_scheduler.start_temperature is missing; |
    train noise_scheduler {enabled: true, num_stages: 0} | noise_scheduler.num_stages is 0 | greater
    orch eval {env: [{id: wordle}]} | eval.env.0.id is 'wordle' | reverse_text
    orch env[].ids 1 | unknown key env.0.ids | id?
    orch env[].id wordle | env.0.id is 'wordle': | reverse_text, ;; orch env[].id file | env.0.args.path is '' | a file
    orch env[].args {min_lenth: 2} | unknown key env.0.args.min_lenth | min_length?"""


def written(tmp_path: Path, file: str, dotted: str = "", text: str = "") -> Path:
    """Write the least that a file has to hold, and a value at a dotted key."""
    place = payload = yaml.safe_load(LEAST[file])
    *sections, key = dotted.split(".")
    for section in sections:
        name = section.removesuffix("[]")
        least = copy.deepcopy(WITH.get(name, {}))
        place = place.setdefault(name, least if name == section else [least])
        place = place[0] if isinstance(place, list) else place
    payload |= {"max_steps": 9} if "temp_scheduler" in dotted else {}
    place |= {key: yaml.safe_load(text)} if dotted else {}
    (tmp_path / file).write_text(yaml.safe_dump(payload))
    return tmp_path / file


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_a_key_of_the_reference_has_its_fate(tmp_path: Path, row: tuple[str, ...]) -> None:
    file, fate, dotted, default, value = row
    path, attribute, first = written(tmp_path, file, dotted, value), dotted.replace("[]", ""), dotted.partition("[]")[0]
    if fate == "refused":
        with pytest.raises(InvalidValueError) as error:
            READ[file](path)
        named = (attribute.replace("env.", "env.0."), first, dotted.rpartition(".")[0])
        assert any(f"{each} is " in error.value.what for each in named)
        assert error.value.legal and (error.value.remedy or dotted == "dtype")
        assert default == "-" or READ[file](written(tmp_path, file, dotted, default))
        return
    found, notices = READ[file](path)
    assert any(f" {first} is " in notice for notice in notices) == (fate == "mapped")
    if fate == "implemented":
        given = yaml.safe_load(value)
        assert value_at(found, dotted) == (tuple(given) if isinstance(given, list) else given)
        least, _ = READ[file](written(tmp_path, file))
        assert default == "-" or value_at(least, dotted) == yaml.safe_load(default)


def value_at(settings: Any, dotted: str) -> Any:
    """Return the value of a dotted key, of a list's first item."""
    for name in dotted.split("."):
        found = getattr(settings, name.removesuffix("[]"))
        settings = found[0] if name.endswith("[]") else found
    return settings


def test_every_field_and_every_unsupported_key_is_in_the_table(tmp_path: Path) -> None:
    def keys_of(values: dict[str, Any], above: str = "") -> Iterator[str]:
        for key, value in values.items():
            yield from keys_of(value, f"{above}{key}.") if isinstance(value, dict) else [above + key]

    for file, kind in (("train", settings.Train), ("infer", settings.Infer), ("orch", settings.Orch)):
        keys = {dotted.replace("[]", "") for where, _, dotted, _, _ in ROWS if where == file}
        fields = {*keys_of(READ[file](written(tmp_path, file))[0].model_dump())}
        missing = {name for name in fields if not any(f"{key}.".startswith(f"{name}.") for key in keys)}
        assert missing == ({"schedule"} if file == "orch" else set())
        for sections, names, _, _ in settings.UNSUPPORTED[kind]:
            for term in (f"{section}.{name}".lstrip(".") for section in sections.split(" ") for name in names.split()):
                assert any(fnmatch(f"{key}.", f"{term.partition('=')[0]}.*") for key in keys)


def test_the_quick_start_with_a_checkpoint_is_read_with_its_notices(tmp_path: Path) -> None:
    for file, text in QUICK_START.items():
        (tmp_path / file).write_text(text)
    (train, _), (infer, _), (orch, _) = read = [READ[file](tmp_path / file) for file in QUICK_START]
    assert (train.recipe, train.learning_rate, infer.host, orch.seq_len) == ("fp32", 2e-4, "127.0.0.1", 2048)
    said = [notice.removeprefix(f"{tmp_path}/").split()[:2] for _, notices in read for notice in notices]
    assert said == [["train:", "recipe"], ["train:", "optimizer"], ["orch:", "env"]]
    (tmp_path / "train").write_text(QUICK_START["train"].replace("lora:", "device: cuda, lora:", 1))
    with pytest.raises(InvalidValueError, match="recipe is 'fp8-hybrid': training is never quantised"):
        settings.read_train(tmp_path / "train")


@pytest.mark.parametrize("row", FAULTS.strip().replace("\n", ";;").split(";;"))
def test_a_fault_is_reported_with_file_key_value_and_legal(tmp_path: Path, row: str) -> None:
    given, what, legal = (part.strip() for part in row.split("|"))
    file, dotted, value = given.split(" ", 2)
    path = written(tmp_path, file, dotted, value)
    with pytest.raises(InvalidValueError) as error:
        READ[file](path)
    assert error.value.what.startswith(f"{path}: {what}")
    assert error.value.legal.startswith(legal) and "Section" not in str(error.value)


@pytest.mark.parametrize("text", ["lora: false\nlora: false", "- lora", "1: 2", "a: [", "model: !!python/name:os.kill"])
def test_a_file_that_is_no_yaml_of_keys_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "train").write_text(text)
    with pytest.raises(InvalidValueError, match=f"^{tmp_path / 'train'}: "):
        settings.read_train(tmp_path / "train")


def test_a_file_of_prompts_is_a_task_and_words_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    path = written(tmp_path, "orch", "env", "[{id: file, args: {path: a.jsonl, rewards: ['a:b']}}]")
    path.write_text(f"{path.read_text()}mode: replay\nschedule: runs\nlevel: off\nclient: {{timeout: 1e-1}}\n")
    orch, notices = settings.read_orch(path)
    task = settings.task_section(orch.env[0], "env.0")
    assert (task.path, task.rewards, notices) == ("a.jsonl", ("a:b",), [])
    assert (orch.level, orch.client.timeout) == ("off", 0.1)
