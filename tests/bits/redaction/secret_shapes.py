"""Secrets as people type them, and words that look like them: the tables of the tests of redaction.

Secrets are put together here: as one text, scanners of repositories would take them for real ones.
"""

import base64
import json
from dataclasses import dataclass

ALNUM = "9fK2mQ7xLwZ4tR8bVn3pY6hD1sJ5cG0aE9uX"
HEX = "3f9a1c7e5b2d8046"
PLAIN = "Tr0ub4dor.Battery7Staple"
"""A password or key without a shape of its own: only what is around it says what it is."""
WANDB = (HEX * 3)[:40]
PEM = f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{ALNUM}\n{ALNUM}==\n-----END RSA PRIVATE KEY-----"


@dataclass(frozen=True)
class Typed:
    """A command line that holds a secret."""

    name: str
    argv: tuple[str, ...]
    secret: str
    others: tuple[str, ...] = ()
    """Parts of the secret that may not be left either, and second secrets."""


def typed(name: str, *argv: str, secret: str = PLAIN, others: tuple[str, ...] = ()) -> Typed:
    assert any(secret in word for word in argv), name
    return Typed(name, argv, secret, others)


def shaped(name: str, secret: str) -> Typed:
    """A secret that its own shape gives away, under a name that says nothing."""
    return Typed(name, ("--note", secret), secret)


UUID = "8f6d3c1e-5b2a-4c7d-9e0f-1a2b3c4d5e6f"
BY_NAME = (
    typed("PGPASSWORD", "env", f"PGPASSWORD={PLAIN}", "psql"),
    typed("MYSQL_PWD", "env", f"MYSQL_PWD={PLAIN}"),
    typed("--db_pwd", "--db_pwd", PLAIN),
    typed("--wandb-key", "--wandb-key", PLAIN),
    typed("--openai-key", f"--openai-key={PLAIN}"),
    typed("OPENAI_KEY", f"OPENAI_KEY={PLAIN}"),
    typed("--hftoken", "--hftoken", PLAIN),
    typed("--apitoken", "--apitoken", PLAIN),
    typed("--tokens", "--tokens", PLAIN),
    typed("--access-tokens", f"--access-tokens={PLAIN}"),
    typed("--key", "--key", PLAIN),
    typed("hydra's ++logger.key", f"++logger.key={PLAIN}"),
    typed("HF_TOKEN", f"HF_TOKEN={PLAIN}"),
    typed("WANDB_API_KEY", f"WANDB_API_KEY={PLAIN}"),
    typed("AWS_SECRET_ACCESS_KEY", f"AWS_SECRET_ACCESS_KEY={PLAIN}"),
    typed("AWS_ACCESS_KEY_ID", f"AWS_ACCESS_KEY_ID={PLAIN}"),
    typed("AWS_SESSION_TOKEN", f"AWS_SESSION_TOKEN={PLAIN}"),
    typed("OPENAI_API_KEY", f"OPENAI_API_KEY={PLAIN}"),
    typed("GITHUB_PAT", f"GITHUB_PAT={PLAIN}"),
    typed("--api-key", "--api-key", PLAIN),
    typed("--api-key=", f"--api-key={PLAIN}"),
    typed("--token", "--token", PLAIN),
    typed("--token=", f"--token={PLAIN}"),
    typed("--password", "--password", PLAIN),
    typed("--password=", f"--password={PLAIN}"),
    typed("--hub_token", "--hub_token", PLAIN),
    typed("--client-secret", "--client-secret", PLAIN),
    typed("hydra's api_key", f"judge.api_key={PLAIN}"),
    shaped("Hugging Face", f"hf_{ALNUM}"),
    shaped("AWS", "AKIA" + ALNUM.upper()[:16]),
    shaped("GitHub", f"ghp_{ALNUM}"),
    shaped("GitHub's servers", f"ghs_{ALNUM}"),
    shaped("GitHub's fine-grained", f"github_pat_{ALNUM[:22]}_{ALNUM}"),
    shaped("GitLab", f"glpat-{ALNUM[:20]}"),
    shaped("OpenAI", f"sk-{ALNUM}"),
    shaped("OpenAI's projects", f"sk-proj-{ALNUM}_{ALNUM}"),
    shaped("Anthropic", f"sk-ant-api03-{ALNUM}AA"),
    shaped("Google", f"AIza{ALNUM[:35]}"),
    shaped("Slack", f"xoxb-1234567890-{ALNUM}"),
    shaped("JSON web tokens", f"eyJ{ALNUM}.eyJ{ALNUM}.{ALNUM}"),
    typed("Bearer", "--header", f"Authorization: Bearer {PLAIN}"),
    typed("Basic", "--header", f"Authorization: Basic {ALNUM}=", secret=ALNUM),
    typed("user:token@host", f"https://user:{PLAIN}@host.example/x"),
    typed("?token=", "--url", f"https://host.example/x?a=1&token={PLAIN}&b=2"),
    typed("?api_key=", f"--url=https://host.example/x?api_key={PLAIN}"),
    typed("Azure's signatures", f"https://a.blob.core.windows.net/c?sv=2024&sig={PLAIN}%3D"),
    typed("AWS's signatures", f"https://b.s3.amazonaws.com/o?X-Amz-Date=1&X-Amz-Signature={HEX * 4}", secret=HEX * 4),
    typed("connection strings", "--conn", f"AccountName=me;AccountKey={PLAIN}==;EndpointSuffix=core"),
    typed("a password with an @", "https://bob:Tr0ub@4dor@host.example/x", secret="Tr0ub@4dor", others=("4dor", "Tr0")),
    typed("Authorization: token", "curl", "-H", f"Authorization: token {PLAIN}", "https://host.example"),
    typed("X-Api-Key", "curl", "-H", f"X-Api-Key: {PLAIN}"),
    typed("JSON", "--config", json.dumps({"lr": 0.1, "wandb": {"key": PLAIN}})),
    typed("a line of a shell", "sh", "-c", f"export HF_TOKEN={PLAIN}; python train.py --lr 1"),
    typed("a second key", f"API_KEY_2={PLAIN}"),
    typed("docker", "docker", "run", "-e", f"HF_TOKEN={PLAIN}", "image"),
    typed("an option of options", f"--env=HF_TOKEN={PLAIN}"),
    typed("settings with commas", "--env", f"A=1,HF_TOKEN={PLAIN}"),
    typed("hydra's mappings", f"db={{user:bob,password:{PLAIN}}}"),
    typed("credentials in JSON", "--c", json.dumps({"credentials": {"value": PLAIN}, "n": [1]})),
    typed("a number in JSON", "--c", '{"password": 987654321}', secret="987654321"),
    typed("JSON that says a name twice", "--c", f'{{"api_key": "{PLAIN}", "api_key": null}}'),
    typed("JSON in a line of a shell", "bash", "-c", f"run --c '{json.dumps({'tokens': {'hf': PLAIN}})}' | tee log"),
    typed("a quoted value in a line", "sh", "-c", f"run --password 'two words {PLAIN}' --lr 1"),
    typed("a shell in a shell", "sh", "-c", f"ssh host \"sh -c 'login --password {PLAIN}'\""),
    typed("code", "python", "-c", f"import x; x.run(api_key='{PLAIN}')"),
    typed("a header without a blank", "http", "host", f"X-Api-Key:{PLAIN}"),
    typed("a header in one word", f"--header=Authorization: token {PLAIN}"),
    typed("a cookie", "curl", "-H", f"Cookie: a=1; session={PLAIN}"),
    typed("a proxy", f"HTTPS_PROXY=bob:{PLAIN}@proxy:3128"),
    typed("Ray's address", f"RAY_ADDRESS=ray://bob:{PLAIN}@head:10001"),
    typed("several URLs", f"--to=http://a:1,http://bob:{PLAIN}@b:2"),
    typed("a URL without a user", f"redis://:{PLAIN}@host:6379/0"),
    typed("a database", f"postgresql://bob:{PLAIN}@db/app?password={PLAIN}"),
    typed("a header as a setting", "--header", f"Authorization=Bearer {PLAIN}"),
    shaped("Weights & Biases since 2025", f"wandb_v1_{ALNUM}_{ALNUM}"),
    shaped("an OpenSSH key that is cut", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blb" + ALNUM),
)
"""Secrets that the name before them or their shape gives away, as people type them."""
BY_SHAPE = (
    shaped("Stripe", f"sk_live_{ALNUM}"),
    shaped("NVIDIA", f"nvapi-{ALNUM}{ALNUM}"),
    shaped("Google's access tokens", f"ya29.a0{ALNUM}"),
    shaped("organisations of Hugging Face", f"api_org_{ALNUM}"),
    shaped("a private key", PEM),
    typed("GitLab's sessions", "--note", f"_gitlab_session={HEX * 2}", secret=HEX * 2),
    typed("Slack's webhooks", f"https://hooks.slack.com/services/T0AB1CD2E/B0AB1CD2E/{ALNUM}", secret=ALNUM),
    typed("a section of a service", "--c", json.dumps({"keys": {"heroku": UUID}}), secret=UUID),
)
"""Secrets under a name that says nothing."""
BASIC = base64.b64encode(f"bob:{PLAIN}".encode()).decode()


def quoted(name: str, text: str, secret: str = PLAIN) -> Typed:
    """A text with a secret, as one word: what a person pastes into a note, a prompt or a variable."""
    return typed(name, "--note", text, secret=secret)


IN_TEXTS = (
    quoted("a kubeconfig's token", f"users:\n- name: me\n  user:\n    token: {PLAIN}\n"),
    quoted("docker's config.json", json.dumps({"auths": {"ghcr.io": {"auth": BASIC}}}), BASIC),
    quoted("docker's identity", json.dumps({"auths": {"ghcr.io": {"identitytoken": PLAIN}}})),
    quoted("an encoded password", "https://bob:Tr0ub%40dor%2FX@host/x", "Tr0ub%40dor%2FX"),
    quoted("a fragment", f"https://host/cb#access_token={PLAIN}&state=1"),
    quoted("Set-Cookie", f"Set-Cookie: session={PLAIN}; Path=/"),
    quoted("curl -b", f"curl -b session={PLAIN} https://x"),
    quoted("export with quotes", f'export HF_TOKEN="{PLAIN}"'),
    quoted("PowerShell", f"$env:HF_TOKEN = '{PLAIN}'"),
    quoted("several lines", f"HF_TOKEN='one\ntwo{PLAIN}'"),
    quoted("an error of requests", f"401 Client Error: Unauthorized for url: https://api.x/v1?api_key={PLAIN}"),
    quoted("an error of pydantic", f"input_value={{'api_key': '{PLAIN}'}}, input_type=dict"),
    quoted("a repr", f"Settings(password='{PLAIN}', url='x')"),
    quoted("basic authentication", f"Proxy-Authorization: Basic {BASIC}", BASIC),
    quoted("git's header", f"git -c http.extraheader='AUTHORIZATION: basic {BASIC}' fetch", BASIC),
    quoted("a remote of git", f"https://oauth2:{PLAIN}@gitlab.com/a/b.git"),
    quoted("a remote of GitHub", f"https://x-access-token:ghs_{ALNUM}@github.com/a/b.git", ALNUM),
    quoted("JDBC", f"jdbc:postgresql://host/db?user=bob&password={PLAIN}"),
    quoted("ODBC", f"Driver={{ODBC}};Server=x;Uid=bob;Pwd={PLAIN};"),
    quoted("libpq", f"host=db user=bob password={PLAIN} dbname=x"),
    quoted("a bus of Azure", f"Endpoint=sb://x/;SharedAccessKeyName=Root;SharedAccessKey={PLAIN}="),
    quoted("a service account", json.dumps({"private_key_id": WANDB, "private_key": PEM}), WANDB),
    quoted("a key of one line", f"-----BEGIN PRIVATE KEY-----\\nMIIE{ALNUM}\\n-----END PRIVATE KEY-----\\n", ALNUM),
    quoted("npm's file", f"//registry.npmjs.org/:_authToken={PLAIN}"),
    quoted("Ruby", f":password => '{PLAIN}'"),
    quoted("TOML", f'api_key = "{PLAIN}"'),
    quoted("a form", f"token[]={PLAIN}&page=2"),
    quoted("a name of a file", f"/data/me/hf_{ALNUM}/ckpt-hf_{ALNUM}.pt", ALNUM),
    quoted("a name of a directory", f"runs/token={PLAIN}/x"),
    quoted("a list of words in JSON", json.dumps(["python", "x.py", "--token", PLAIN])),
    quoted("JSON in JSON in JSON", json.dumps(json.dumps({"c": json.dumps({"api_key": PLAIN})}))),
)
"""What people paste: files, errors, addresses."""
ALL = (*BY_NAME, *BY_SHAPE, *IN_TEXTS)
"""Every one, from command lines to texts."""

CONFIGURATIONS = (
    # (a configuration, the secret in it)
    ({"credentials": {"value": PLAIN}}, PLAIN),
    ({"password": 987654321}, "987654321"),
    ({"api_keys": [[987654321, 123123123]]}, "987654321"),
    ({"wandb": {"key": PLAIN}}, PLAIN),
    ({"tokens": {"hf": PLAIN}}, PLAIN),
    ({"smtp": {"pwd": PLAIN}}, PLAIN),
    ({"db": {"pass": PLAIN}}, PLAIN),
    ({"judge": {"url": f"https://host.example/?token={PLAIN}"}}, PLAIN),
    ({"headers": {"Authorization": f"token {PLAIN}"}}, PLAIN),
    ({"api_key": PLAIN}, PLAIN),
    ({"output": {"hub_token": PLAIN}}, PLAIN),
    ({"judge": {"url": f"https://bob:{PLAIN}@host.example"}}, PLAIN),
    ({"judge": {"secrets": [PLAIN]}}, PLAIN),
    ({"note": f"hf_{ALNUM}"}, ALNUM),
    ({"hooks": [{"header": f"Bearer {PLAIN}"}]}, PLAIN),
)
