"""Command lines and a configuration that look as if they held secrets, and hold none."""

from tests.bits.redaction.secret_shapes import HEX

COMMIT = (HEX[::-1] * 3)[:40]
HARMLESS = (
    ("--max-tokens", "512"),
    ("--max_new_tokens=512", "--microbatch-tokens", "16384", "--tokens", "1e9", "--total-tokens=2B"),
    ("--pad_token_id", "0", "--eos-token", "</s>", "--stop_token=<|im_end|>", "--token-type-ids", "0,1"),
    ("--tokenizer", "Qwen/Qwen3-8B", "--tokenizer.path=/models/qwen"),
    ("data.prompt_key=prompt", "data.reward_fn_key=data_source", "--input_key", "question", "--label-key=answer"),
    ("--sort-key", "length", "model.num_key_value_heads=8", "model.key_size=64", "cache_key=step", "primary_key=id"),
    ("key=answer", "keys=[a,b]", "--keys", "prompt", "--public-key", "ssh.pub"),
    ("--author", "bob", "--compass", "north", "--monkey=1", "--passes", "3", "--num-pass", "2", "eval.pass=8"),
    ("git", "checkout", COMMIT),
    ("--revision", COMMIT, f"--model.revision={COMMIT}", f"--commit={COMMIT}", "--sha", COMMIT),
    (f"/cache/snapshots/{COMMIT}/model.safetensors", f"git+https://github.com/a/b@{COMMIT}"),
    ("--digest", HEX * 2, f"sha256:{HEX * 4}", f"repo/image:2.1@sha256:{HEX * 4}", HEX * 2, HEX * 4),
    ("GPU-8f6d3c1e-5b2a-4c7d-9e0f-1a2b3c4d5e6f", "--uuid=8f6d3c1e-5b2a-4c7d-9e0f-1a2b3c4d5e6f"),
    ("--run-id", "20261123-101112-3f9a1c", "tests/test_a.py::test_b[1-True]", "--wandb-project", "rl"),
    ("python", "-u", "train.py", "-m", "pkg.mod", "-p", "0.9", "-p", "8080:80", "-W", "error::DeprecationWarning"),
    ("python", "-m", "pytest", "-p", "no:cacheprovider", "-p", "harness.plugin", "-k", "token or key"),
    ("docker", "run", "--user", "1000:1000", "-p", "8080:80", "image"),
    ("--lr=1e-6", "-5", "--", "-x", "a=b", "--betas=0.9,0.95", "--loss", "reverse-kl"),
    ("git@github.com:a/b.git", "https://github.com/a/b@v1.2", "https://registry.npmjs.org/@types/node"),
    ("http://localhost:8000/v1", "http://[::1]:80/x@y", "https://host.example/x?page=2&sort_key=a#token"),
    ("task-based", "disk-0123456789abcdef0123", "ask-me", "scikit-learn==1.5", "torch==2.13.0+cpu", "npm_config_cache"),
    ("--data", "aGVsbG8gd29ybGQsIHRoaXMgaXMgZGF0YSBvZiBiYXNlNjQ=", "--shape", "4096,11008"),
    ("--prompt", "Solve it step by step; --token is not an option, and don't use a secretary's keyboard."),
    ("sh", "-c", "cd /x && python train.py --seed 7 | tee 'a b.log'; echo \"it's done\" > /dev/null"),
    ("--json", '{"max_tokens": 8, "pad_token": "<pad>", "sort_key": "a",  "keys": ["x"], "auth": {"enabled": true}}'),
    (
        "--logger",
        "wandb",
        "wandb=offline",
        "--wandb",
        "my-project-of-2026",
        "telegram=true",
        "sentry=0.5",
        "slack=general",
    ),
    ("--wandb-run-id", HEX * 2, "wandb.run_id=3f9a1c7e", "mlflow.run_id=" + HEX * 2, "docker=" + HEX * 2),
    ("--use-auth-token", "true", "--api-key=", "--token", "--lr=1e-6", "RAY_AUTH_MODE=disabled", "PWD=/srv/bob"),
)
"""Command lines that stay as they are."""

HARMLESS_CONFIGURATION = {
    "seed": 7,
    "task": {"key": "answer", "sort_key": "length", "keys": ["prompt", "answer"], "prompt_key": "prompt"},
    "model": {
        "num_key_value_heads": 8,
        "key_size": 64,
        "revision": COMMIT,
        "tokenizer": {"path": "/models/qwen", "special_tokens": {"pad": "<pad>", "eos": 2}, "tokens": {"bos": "<s>"}},
        "pad_token_id": 0,
        "eos_token": "</s>",
        "stop_tokens": ["<|im_end|>", 151645],
    },
    "sampling": {"max_tokens": 512, "tokens": 1000, "logprobs": True, "n": 8, "token_budget": 4096},
    "eval": {"pass": 8, "pass_rate": 0.5, "passes": 2},
    "judge": {
        "api_key": None,
        "use_auth_token": True,
        "password": "",
        "auth": {"timeout": 30, "type": "none", "user": "bob"},
    },
    "prompts": ["Basic arithmetic: 2 + 2.", "The primary key: a column.", "Token by token."],
    "digest": HEX * 2,
    "url": "http://localhost:8000/v1",
}
