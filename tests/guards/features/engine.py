"""Features of the engine's configuration, seen in short trainings."""

from typing import Any

from tests.guards.features.feature import Feature, Run, Seen

_SETTINGS = (
    *("seed=3", "model.family=llama", "model.width=48", "model.num_layers=2", "model.num_heads=4"),
    *("model.num_kv_heads=2", "model.head_width=8", "model.ffn_width=80", "model.is_tied=false"),
    *("task.name=reverse_text", "task.num_heldout=3", "task.min_length=7", "task.max_length=7"),
    *("task.rewards=[rewards:half]", "task.reward_weights=[2.0]", "warm_start.num_steps=2", "warm_start.batch_size=5"),
    *("warm_start.learning_rate=0.002", "warm_start.target_reward=0.9", "sampling.max_tokens=4"),
    *("optimizer.learning_rate=0.004", "training.num_steps=4", "training.prompts_per_step=3", "training.group_size=2"),
    "training.microbatch_size=3",
    *("output.checkpoint_every=1", "output.keep_checkpoints=3", "output.evaluate_every=1", "output.num_shown=1"),
    "output.shows_progress=false",
)
_SET = tuple(f"--set={each}" for each in _SETTINGS)
ENGINE = Run(
    name="engine",
    command=("train", "grpo_sorting", "--size=tiny", "--out=made", *_SET),
    files={"rewards.py": "def half(completions, **columns): return [0.5] * len(completions)\n"},
    package="torch",
)
RESUMED = Run(
    name="engine-resumed",
    command=(
        *("train", "grpo_sorting", "--size=tiny", "--out=again", *_SET),
        *("--set=output.resume=made", "--set=output.resume_step=2"),
    ),
    base=ENGINE,
)
_LORA = ("--set=model.lora.alpha=5", "--set=model.lora.target_modules=[q_proj,up_proj]", "--set=training.num_steps=1")
ADAPTED = Run(
    name="engine-adapted",
    command=("train", "grpo_sorting", "--size=tiny", "--out=made", "--set=model.lora.rank=3", *_LORA),
    package="torch",
)
FROM_ADAPTERS = Run(
    name="engine-from-adapters",
    command=(
        *("train", "grpo_sorting", "--size=tiny", "--out=again", "--set=model.lora.rank=2", *_LORA),
        "--set=model.lora.path=made/checkpoints/step-000001/policy",
    ),
    base=ADAPTED,
)


_GAMES = """
import time

class Echo:
    is_deterministic = False

    def __init__(self, word, wait_s=0.0):
        self.word, self.wait_s = word, wait_s

    def reset(self, *, seed, options):
        return "", {}

    def step(self, text):
        time.sleep(self.wait_s)
        return self.word, 0.5, False, False, {}
"""


def _game(name: str, arguments: str, *settings: str) -> Run:
    """A step of an environment that always answers the same word."""
    given = ("name=games:Echo", f"arguments={arguments}", "answers=kept.jsonl", *settings)
    common = ("--set=warm_start.num_steps=0", "--set=training.num_steps=1", "--set=output.num_shown=4")
    own = tuple(f"--set=task.environment.{each}" for each in given)
    command = ("train", "grpo_products", "--size=tiny", "--out=made", *common, *own)
    return Run(name=name, command=command, files={"games.py": _GAMES}, package="torch")


PLAYED = _game("engine-played", "{word: abcdefgh}", "max_turns=2", "max_answer_tokens=3")
WAITED = _game("engine-waited", "{word: abc, wait_s: 20.0}", "max_turns=2", "timeout_s=0.2", "max_answer_tokens=60")


def _said(seen: Seen) -> list[str]:
    return [line["completion"] for line in _shown(seen)]


def _lora(key: str, name: str, value: object) -> Feature:
    """A setting of adapters, in their adapter_config.json."""
    path = "made/checkpoints/step-000001/policy/adapter_config.json"
    return Feature(f"engine model.lora.{key}", ADAPTED, f"{name} {value}", lambda s: s.load(path)[name] == value)


def _model(seen: Seen) -> Any:
    """config.json of the newest checkpoint."""
    return seen.load("made/checkpoints/step-000004/policy/config.json")


def _shown(seen: Seen) -> list[Any]:
    return seen.lines("made/completions.jsonl")


def _steps(seen: Seen, run: str = "made") -> list[Any]:
    return seen.lines(f"{run}/curve.jsonl")


def _size(key: str, name: str, value: object) -> Feature:
    """A size of the model, in the checkpoint's config.json."""
    return Feature(f"engine model.{key}", ENGINE, f"{name} {value}", lambda s: _model(s)[name] == value)


def _printed(key: str, text: str) -> Feature:
    """What the plan of the run says."""
    return Feature(f"engine {key}", ENGINE, text, lambda s: text in s.out + s.err)


FEATURES: tuple[Feature, ...] = (
    _size("family", "model_type", "llama"),
    _size("width", "hidden_size", 48),
    _size("num_layers", "num_hidden_layers", 2),
    _size("num_heads", "num_attention_heads", 4),
    _size("num_kv_heads", "num_key_value_heads", 2),
    _size("head_width", "head_dim", 8),
    _size("ffn_width", "intermediate_size", 80),
    _size("is_tied", "tie_word_embeddings", False),
    _lora("rank", "r", 3),
    _lora("alpha", "lora_alpha", 5.0),
    _lora("target_modules", "target_modules", ["q_proj", "up_proj"]),
    Feature(
        "engine model.lora.path",
        FROM_ADAPTERS,
        "another rank is refused",
        lambda s: "adapter_config.json has" in s.out + s.err,
    ),
    Feature("engine task.environment.name", PLAYED, "it answers", lambda s: all("abc" in each for each in _said(s))),
    Feature("engine task.environment.arguments", PLAYED, "the word", lambda s: "abcdefgh" in s.read("kept.jsonl")),
    Feature("engine task.environment.answers", PLAYED, "are kept", lambda s: "abcdefgh" in s.read("kept.jsonl")),
    Feature("engine task.environment.max_turns", PLAYED, "2", lambda s: {e.count("abc") for e in _said(s)} == {2}),
    Feature(
        "engine task.environment.max_answer_tokens",
        PLAYED,
        "an answer is cut after 3",
        lambda s: not any("abcd" in each for each in _said(s)),
    ),
    Feature(
        "engine task.environment.timeout_s",
        WAITED,
        "is the answer",
        lambda s: all("TimeoutError: no answer within 0.2 s" in each for each in _said(s)),
    ),
    _printed("seed", "drawn from seed 3"),
    _printed("task.num_heldout", "over 3 prompts"),
    _printed("warm_start.num_steps", "up to 2 supervised steps"),
    _printed("warm_start.batch_size", " 5 prompts each"),
    _printed("warm_start.learning_rate", "learning rate 0.002"),
    _printed("warm_start.target_reward", "until the reward is 0.9"),
    _printed("optimizer.learning_rate", "learning rate 0.004"),
    _printed("training.prompts_per_step", "3 prompts of"),
    _printed("training.group_size", "of 2 completions each"),
    _printed("output.evaluate_every", "after step 0"),
    Feature(
        "engine task.name",
        ENGINE,
        "words backwards",
        lambda s: _shown(s)[0]["answer"] == _shown(s)[0]["prompt"][-2::-1],
    ),
    Feature("engine task.min_length", ENGINE, "seven letters", lambda s: {len(e["answer"]) for e in _shown(s)} == {7}),
    Feature("engine task.max_length", ENGINE, "seven letters", lambda s: {len(e["answer"]) for e in _shown(s)} == {7}),
    Feature("engine task.rewards", ENGINE, "the reward of all", lambda s: _steps(s)[0]["reward_mean"][1] == 1.0),
    Feature("engine task.reward_weights", ENGINE, "twice the reward", lambda s: _steps(s)[0]["reward_mean"][1] == 1.0),
    Feature("engine sampling.max_tokens", ENGINE, "short ones", lambda s: _steps(s)[0]["completion_length"][1] <= 4),
    Feature("engine training.microbatch_size", ENGINE, "one that divides the samples", lambda s: s.code == 0),
    Feature("engine training.num_steps", ENGINE, "four steps", lambda s: len(_steps(s)) == 4),
    Feature("engine output.num_shown", ENGINE, "one at each evaluation", lambda s: 4 <= len(_shown(s)) <= 5),
    Feature(
        "engine output.shows_progress",
        ENGINE,
        "no line for a step",
        lambda s: len(_steps(s)) == 4 and "training: step" not in s.out + s.err,
    ),
    Feature(
        "engine output.checkpoint_every",
        ENGINE,
        "three",
        lambda s: len(list(s.at.glob("made/checkpoints/step-*"))) == 3,
    ),
    Feature(
        "engine output.keep_checkpoints",
        ENGINE,
        "three",
        lambda s: len(list(s.at.glob("made/checkpoints/step-*"))) == 3,
    ),
    Feature("engine output.resume", RESUMED, "steps from 2 on", lambda s: _steps(s, "again")[0]["step"] == 2),
    Feature("engine output.resume_step", RESUMED, "steps from 2 on", lambda s: _steps(s, "again")[0]["step"] == 2),
)
