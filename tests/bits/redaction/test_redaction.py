"""Secrets are taken out, and what a language model's configuration is full of is left in."""

import ast
import json
import random
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.redaction import REDACTED, SHAPES, is_secret, redact_argv, redact_fields, redact_text, redact_values
from tests.bits.redaction.harmless_words import COMMIT, HARMLESS, HARMLESS_CONFIGURATION
from tests.bits.redaction.secret_shapes import (
    ALL,
    CONFIGURATIONS,
    HEX,
    PLAIN,
    WANDB,
    Typed,
)

ROOT = Path(__file__).resolve().parents[3]
SECRET = (
    "HF_TOKEN token apiKey WANDB_API_KEY --api-key db.password OPENAI_API_KEY AWS_SECRET_ACCESS_KEY hub_token"
    " GITHUB_PAT auth_header client-secret private_key PASSWORD awsCredentials PGPASSWORD pgpassword smtp.pwd db.pass"
    " wandb.key tokens.hf hftoken apiKeys credentials.value SMTP_PASS ++logger.key oauthToken api_key_2"
    " --pin user.pin otp TOTP one_time_code mfa-code"
)
HARMLESS_NAMES = (
    "max_tokens num_tokens tokenizer pad_token eos_token token_id stop_token author key num_keys key_seed monkey"
    " path compat passes max_new_tokens tokens_per_step secretary keyed_sampling top_k sort_key primary_key cache_key"
    " num_key_value_heads key_size tokens.pad PWD RAY_AUTH_MODE auth.timeout forward_pass compass"
    " pin_memory postcode exit_code"
)


@pytest.mark.parametrize("name", SECRET.split())
def test_secret_names(name: str) -> None:
    assert is_secret(name, PLAIN)


@pytest.mark.parametrize("name", HARMLESS_NAMES.split())
def test_harmless_names(name: str) -> None:
    assert not is_secret(name, "answer")


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("hf_" + "a1B2" * 8, REDACTED),
        ("x sk-" + "proj-abcdef0123456789 y", f"x {REDACTED} y"),
        ("https://user:pw@host/x", f"https://{REDACTED}@host/x"),
        ("Bearer abcdef.123456", f"Bearer {REDACTED}"),
        ("AKIA" + "ABCDEFGHIJKLMNOP", REDACTED),
        ("ghp_" + "0123456789abcdefABCD", REDACTED),
        ("git@github.com:a/b.git", "git@github.com:a/b.git"),
        ("task-based disk-0123456789abcdef0123", "task-based disk-0123456789abcdef0123"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
    ],
)
def test_shapes_of_secrets(text: str, redacted: str) -> None:
    assert redact_text(text) == redacted


def test_a_dozen_shapes_are_looked_for_and_many_secrets_planted() -> None:
    assert len(SHAPES) == 12
    assert len({each.name for each in ALL}) == len(ALL) >= 80


@pytest.mark.full
@pytest.mark.parametrize("typed", ALL, ids=lambda typed: typed.name)
def test_no_secret_of_a_command_line_is_left(typed: Typed) -> None:
    argv = ("python", "train.py", "--seed", "7", *typed.argv)
    redacted = redact_argv(argv)
    for secret in (typed.secret, *typed.others):
        assert [word for word in redacted if secret in word] == []
    assert REDACTED in " ".join(redacted), "the reader sees that something was there"
    assert redacted[:4] == argv[:4]
    assert redact_argv(redacted) == redacted


@pytest.mark.full
@pytest.mark.parametrize("typed", ALL, ids=lambda typed: typed.name)
def test_no_secret_is_left_in_a_configuration_that_holds_the_command(typed: Typed) -> None:
    command = shlex.join(typed.argv)
    redacted = redact_argv(("ssh", "host", f"cd /x && python {command} > log"))
    assert [word for word in redacted if typed.secret in word] == []


@pytest.mark.full
@pytest.mark.parametrize("typed", ALL, ids=lambda typed: typed.name)
def test_no_secret_is_left_of_a_command_that_is_a_list(typed: Typed) -> None:
    """In a configuration, in JSON, and as Python prints it in an error."""
    argv = ["python", "train.py", *typed.argv]
    texts = [json.dumps(redact_values({"run": argv})), redact_text(json.dumps(argv)), redact_text(f"ran {argv!r}: no")]
    assert [text for text in texts for secret in (typed.secret, *typed.others) if secret in text] == []


@pytest.mark.parametrize("argv", HARMLESS, ids=lambda argv: argv[0])
def test_command_lines_without_a_secret_stay_as_they_are(argv: tuple[str, ...]) -> None:
    assert redact_argv(argv) == argv
    assert redact_argv(["python", "x.py", *argv])[2:] == argv


def test_a_redacted_command_line_can_still_be_read() -> None:
    argv = ["train.py", "--hf-token", "abc", "--api-key=abc", "WANDB_API_KEY=abc", "--max-tokens", "512", "--token"]
    assert redact_argv([*argv, "--lr=1e-6"]) == (
        *("train.py", "--hf-token", REDACTED, f"--api-key={REDACTED}", f"WANDB_API_KEY={REDACTED}"),
        *("--max-tokens", "512", "--token", "--lr=1e-6"),
    )
    line = f"cd '/a b' && HF_TOKEN={PLAIN} python train.py --lr 1"
    assert redact_argv(["sh", "-c", line])[2] == f"cd '/a b' && HF_TOKEN={REDACTED} python train.py --lr 1"
    url = f"https://bob:{PLAIN}@host.example/x?token={PLAIN}&page=2"
    assert redact_argv([url]) == (f"https://{REDACTED}@host.example/x?token={REDACTED}&page=2",)
    assert redact_argv(["-H", f"X-Api-Key: {PLAIN}"]) == ("-H", f"X-Api-Key: {REDACTED}")


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f"ran: python x.py --token {PLAIN} --lr 1", f"ran: python x.py --token {REDACTED} --lr 1"),
        (f"ran ['x', '--token', '{PLAIN}', '1']", f"ran ['x', '--token', '{REDACTED}', '1']"),
        (f"{{'api_key': '{PLAIN}', 'n': 1}}", f"{{'api_key': '{REDACTED}', 'n': 1}}"),
        (f"password: {PLAIN}\nseed: 7", f"password: {REDACTED}\nseed: 7"),
        (f"password = '{PLAIN}'", f"password = '{REDACTED}'"),
        (f"curl -H 'Authorization: token {PLAIN}' x", f"curl -H 'Authorization: {REDACTED}' x"),
        (f'{{"wandb": {{"key": "{PLAIN}"}}}}', f'{{"wandb": {{"key": "{REDACTED}"}}}}'),
        (f'\\"api_key\\": \\"{PLAIN}\\", x', f'\\"api_key\\": \\"{REDACTED}\\", x'),
        ("forward (auth.py:12)\nget_token (token.py:33)", "forward (auth.py:12)\nget_token (token.py:33)"),
        ("step 3: tokens: 12 of 40 differ, key: answer", "step 3: tokens: 12 of 40 differ, key: answer"),
        (f"commit {COMMIT}, digest {HEX * 2}", f"commit {COMMIT}, digest {HEX * 2}"),
        ("if token == 'abc': pass", "if token == 'abc': pass"),
        ("legal: KEY=VALUE: a dotted key", "legal: KEY=VALUE: a dotted key"),
        ("KEY=VALUE,VALUE: a value for each run", "KEY=VALUE,VALUE: a value for each run"),
        (f"KEY=VALUE{PLAIN}: x", f"KEY={REDACTED} x"),
        ("/etc/passwd: File exists", "/etc/passwd: File exists"),
        ("out/api_token: is not a trace", "out/api_token: is not a trace"),
    ],
)
def test_text(text: str, redacted: str) -> None:
    assert redact_text(text) == redacted
    assert redact_text(redacted) == redacted


def test_fields() -> None:
    fields = {"seed": "7", "hub_token": "abc", "data": "https://u:p@host/data", "max_tokens": "512"}
    assert redact_fields(fields) == {
        **fields,
        "hub_token": REDACTED,
        "data": f"https://{REDACTED}@host/data",
    }


def test_what_a_fingerprint_says_of_the_machine_and_the_code_stays() -> None:
    fields = {
        "commit": COMMIT,
        "uncommitted": HEX * 2,
        "package google-auth": "2.40.1",
        "package tokenizers": "0.22.0",
        "library libsecret-1.so.0": WANDB,
        "variable PYTHONHASHSEED": "0",
        "argument 1": "train.py",
    }
    assert redact_fields(fields) == fields


@pytest.mark.parametrize(("config", "secret"), CONFIGURATIONS, ids=lambda value: str(value)[:30])
def test_no_secret_of_a_configuration_is_left(config: object, secret: str) -> None:
    redacted = redact_values({"run": config})
    assert secret not in json.dumps(redacted)
    assert redact_values(redacted) == redacted
    assert secret not in redact_text(json.dumps(config))
    assert secret not in repr(redact_fields({"list": json.dumps([config])}))


def test_a_configuration_without_a_secret_stays_as_it_is() -> None:
    assert redact_values(HARMLESS_CONFIGURATION) == HARMLESS_CONFIGURATION
    text = json.dumps(HARMLESS_CONFIGURATION)
    assert redact_text(text) == text


WORDS = st.text("abcdefgh", min_size=1, max_size=8)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
SIGNS = "'\"\\=:;@/?&{}[],-+<> \n"
FRAGMENTS = ("--token", "password", "://", "key", "eyJ", "sk-", REDACTED, "Bearer ", "-u", "-p", "a:b", "tokens=", "1")
HOSTILE = st.lists(st.sampled_from([*SIGNS, *FRAGMENTS]), max_size=30).map("".join)
LETTERS_AND_DIGITS = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
SECRETS = st.text(LETTERS_AND_DIGITS, min_size=10, max_size=40).map("S3".__add__)
TEMPLATES = (
    *(["--password", "{}"], ["--api-key={}"], ["HF_TOKEN={}"], ["++logger.key={}"], ["-H", "X-Api-Key: {}"]),
    *(
        ["https://u:{}@host.example/x"],
        ["https://host.example/?token={}"],
        ["--pin", "{}"],
        ["--otp={}"],
        ["--one-time-code", "{}"],
    ),
    *(['{{"credentials": {{"v": "{}"}}}}'], ["sh", "-c", "run --token {} && x"], ["--env=DB_PASS={}"]),
    *(["Authorization: token {}"], ["AccountKey={};x=1"], ["python", "-c", "f(api_key='{}')"]),
)


@given(st.sampled_from(TEMPLATES), SECRETS, st.lists(WORDS, max_size=4), st.lists(WORDS, max_size=4))
def test_a_secret_among_any_words_is_taken_out_and_the_words_are_not(
    template: list[str], secret: str, before: list[str], after: list[str]
) -> None:
    argv = [*before, *(word.format(secret) for word in template), *after]
    redacted = redact_argv(argv)
    assert [word for word in redacted if secret in word] == []
    assert redacted[: len(before)] == tuple(before)
    assert redacted[len(argv) - len(after) :] == tuple(after)
    assert secret not in redact_text(shlex.join(argv))


@given(st.lists(TEXTS | HOSTILE, max_size=6))
def test_to_redact_twice_is_to_redact_once(argv: list[str]) -> None:
    once = redact_argv(argv)
    assert redact_argv(once) == once
    text = redact_text(" ".join(argv))
    assert redact_text(text) == text
    fields = redact_fields(dict.fromkeys(argv, "x y"))
    assert redact_fields(fields) == fields


@pytest.mark.full
def test_deep_text_is_text() -> None:
    deep = '{"a":' * 100_000 + f'"--token {PLAIN}"' + "}" * 100_000
    assert PLAIN not in redact_text(deep)
    assert PLAIN not in redact_argv(["a=" * 10_000 + f"--token={PLAIN}"])[0]


def test_seeded_noise_is_no_secret() -> None:
    noise = random.Random(7)
    words = ["".join(noise.choices("abcdefghijklmnopqrstuvwxyz", k=noise.randint(1, 12))) for _ in range(2000)]
    assert redact_argv(words) == tuple(words)


@pytest.mark.parametrize("path", sorted((ROOT / "harness" / "bits").glob("redaction.py")), ids=lambda path: path.stem)
def test_an_interpreter_that_is_too_old_for_recordings_can_read_it(path: Path) -> None:
    """The boot hook loads it there, by the names of no package of ours."""
    text = path.read_text("utf-8")
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    absolute = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    assert {name.partition(".")[0] for name in imported | absolute} <= sys.stdlib_module_names
    assert " | None" not in text or "from __future__ import annotations" in text


VECTORS = json.loads((ROOT / "harness" / "trace" / "vectors.json").read_text("utf-8"))["redaction"]


@pytest.mark.parametrize("vector", VECTORS["argv"], ids=lambda vector: " ".join(vector["redacted"])[:40])
def test_vectors_of_command_lines(vector: dict[str, list[str]]) -> None:
    assert redact_argv(vector["words"]) == tuple(vector["redacted"])


def test_vectors_of_text_fields_and_shapes() -> None:
    assert [redact_text(each["text"]) for each in VECTORS["text"]] == [each["redacted"] for each in VECTORS["text"]]
    for each in VECTORS["fields"]:
        assert redact_fields(each["fields"]) == each["redacted"]
    assert {redact_text("".join(each["pieces"])) for each in VECTORS["shapes"]} == {REDACTED}
