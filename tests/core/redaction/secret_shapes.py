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
    typed("a password with dashes", "--password", f"--{PLAIN}"),
    typed("a second word", "--token", ALNUM, PLAIN, "--lr", "1"),
)
BY_SHAPE = (
    shaped("Stripe", f"sk_live_{ALNUM}"),
    shaped("NVIDIA", f"nvapi-{ALNUM}{ALNUM}"),
    shaped("npm", f"npm_{ALNUM}"),
    shaped("PyPI", f"pypi-AgEIcHlwaS5vcmc{ALNUM}"),
    shaped("Groq", f"gsk_{ALNUM}"),
    shaped("xAI", f"xai-{ALNUM}"),
    shaped("Replicate", f"r8_{ALNUM}"),
    shaped("Google's access tokens", f"ya29.a0{ALNUM}"),
    shaped("Slack's apps", f"xapp-1-A{ALNUM}"),
    shaped("SendGrid", f"SG.{ALNUM[:22]}.{ALNUM}"),
    shaped("Docker", f"dckr_pat_{ALNUM}"),
    shaped("Vault", f"hvs.CAES{ALNUM}"),
    shaped("organisations of Hugging Face", f"api_org_{ALNUM}"),
    shaped("a private key", PEM),
    shaped("Weights & Biases", WANDB),
    shaped("Slack's webhooks", f"https://hooks.slack.com/services/T0001/B0002/{ALNUM[:24]}"),
    shaped("Discord's webhooks", f"https://discord.com/api/webhooks/123456789012345678/{ALNUM}"),
)
IN_PLACES = (
    typed("?token=", "--url", f"https://host.example/x?a=1&token={PLAIN}&b=2"),
    typed("?api_key=", f"--url=https://host.example/x?api_key={PLAIN}"),
    typed("Azure's signatures", f"https://a.blob.core.windows.net/c?sv=2024&sig={PLAIN}%3D"),
    typed("AWS's signatures", f"https://b.s3.amazonaws.com/o?X-Amz-Date=1&X-Amz-Signature={HEX * 4}", secret=HEX * 4),
    typed("connection strings", "--conn", f"AccountName=me;AccountKey={PLAIN}==;EndpointSuffix=core"),
    typed("a password with a slash", "redis://bob:Tr0ub/4dor@host.example/0", secret="Tr0ub/4dor", others=("4dor",)),
    typed("a password with an @", "https://bob:Tr0ub@4dor@host.example/x", secret="Tr0ub@4dor", others=("4dor", "Tr0")),
    typed("Authorization: token", "curl", "-H", f"Authorization: token {PLAIN}", "https://host.example"),
    typed("X-Api-Key", "curl", "-H", f"X-Api-Key: {PLAIN}"),
    typed("curl -u", "curl", "-u", f"bob:{PLAIN}", "https://host.example"),
    typed("-p", "mysql", "-p", PLAIN, "-h", "host"),
    typed("JSON", "--config", json.dumps({"lr": 0.1, "wandb": {"key": PLAIN}})),
    typed("a line of a shell", "sh", "-c", f"export HF_TOKEN={PLAIN}; python train.py --lr 1"),
)
HELD = (
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
)
FOUND_LATER = (
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
    typed("a line that goes on", "sh", "-c", f"run \\\n  --token \\\n  {PLAIN} \\\n  --lr 1"),
    typed("a shell in a shell", "sh", "-c", f"ssh host \"sh -c 'login --password {PLAIN}'\""),
    typed("wandb login in a line", "sh", "-c", f"wandb login {WANDB} && python train.py", secret=WANDB),
    typed("code", "python", "-c", f"import x; x.run(api_key='{PLAIN}')"),
    typed("a header without a blank", "http", "host", f"X-Api-Key:{PLAIN}"),
    typed("a header in one word", f"--header=Authorization: token {PLAIN}"),
    typed("a cookie", "curl", "-H", f"Cookie: a=1; session={PLAIN}"),
    typed("-u in one word", "curl", f"-ubob:{PLAIN}"),
    typed("-p in one word", "mysql", f"-p{PLAIN}"),
    typed("sshpass", "sshpass", "-p", "12345678", "ssh", "host", secret="12345678"),
    typed(
        "several tokens", "--api-tokens", "1stQ9xT4", PLAIN, "3rdW8yT5", "--lr", "1", others=("1stQ9xT4", "3rdW8yT5")
    ),
    typed("a proxy", f"HTTPS_PROXY=bob:{PLAIN}@proxy:3128"),
    typed("Ray's address", f"RAY_ADDRESS=ray://bob:{PLAIN}@head:10001"),
    typed("several URLs", f"--to=http://a:1,http://bob:{PLAIN}@b:2"),
    typed("a URL without a user", f"redis://:{PLAIN}@host:6379/0"),
    typed("a database", f"postgresql://bob:{PLAIN}@db/app?password={PLAIN}"),
    typed("a header as a setting", "--header", f"Authorization=Bearer {PLAIN}"),
    typed(
        "a name that stands by itself", "aws", "configure", "set", "aws_secret_access_key", f"{ALNUM}/aB3", secret=ALNUM
    ),
    typed("a login", "vault", "login", PLAIN),
    typed("--env NAME VALUE", "--env", "OPENAI_API_KEY", PLAIN),
    typed("redis-cli", "redis-cli", "-a", PLAIN),
    typed("--pass-phrase", "--pass-phrase", PLAIN, "--pw", PLAIN),
    shaped("Weights & Biases since 2025", f"wandb_v1_{ALNUM}_{ALNUM}"),
    shaped("Telegram", f"123456789:A{ALNUM[:34]}"),
    shaped("Databricks", f"dapi{HEX * 2}"),
    shaped("Stripe's webhooks", f"whsec_{ALNUM}"),
    shaped("an OpenSSH key that is cut", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blb" + ALNUM),
)
"""Beyond the 75 that were counted."""
UPPER = (ALNUM.upper() * 3)[:64]
OF_SERVICES = (
    shaped("Azure's client secrets", f"Ab~8Q~{ALNUM[:34]}"),
    shaped("RunPod", f"rpa_{UPPER[:44]}"),
    shaped("Lambda", f"secret_my-key_{HEX * 2}.{ALNUM[:32]}"),
    shaped("Anyscale", f"aph0_{ALNUM}"),
    shaped("Firecrawl", f"fc-{HEX * 2}"),
    shaped("E2B", f"e2b_{HEX * 2}{HEX[:8]}"),
    shaped("LlamaCloud", f"llx-{ALNUM}"),
    shaped("Voyage", f"pa-{ALNUM}_{ALNUM}"),
    shaped("ElevenLabs", f"sk_{HEX * 3}"),
    shaped("Kaggle", f"KGAT_{HEX * 2}"),
    shaped("Atlassian", f"ATATT3xFfGF0{ALNUM}{ALNUM}"),
    shaped("Airtable", f"pat{ALNUM[:14]}.{HEX * 4}"),
    shaped("Figma", f"figd_{ALNUM}"),
    shaped("HubSpot", "pat-na1-8f6d3c1e-5b2a-4c7d-9e0f-1a2b3c4d5e6f"),
    shaped("Contentful", f"CFPAT-{ALNUM}Ab12345"),
    shaped("Typeform", f"tfp_{ALNUM}{ALNUM}"),
    shaped("Dynatrace", f"dt0c01.{UPPER[:24]}.{UPPER}"),
    shaped("New Relic", f"NRAK-{UPPER[:27]}"),
    shaped("SonarQube", f"squ_{(HEX * 3)[:40]}"),
    shaped("Heroku", f"HRKU-AA{ALNUM}{ALNUM[:22]}"),
    shaped("Netlify", f"nfp_{ALNUM}"),
    shaped("Vercel", f"vercel_blob_rw_{ALNUM}"),
    shaped("Supabase", f"sbp_{(HEX * 3)[:40]}"),
    shaped("Neon", f"napi_{ALNUM.lower()}{ALNUM.lower()[:24]}"),
    shaped("Tailscale", f"tskey-auth-{ALNUM[:12]}CNTRL-{ALNUM}"),
    shaped("Prefect", f"pnu_{ALNUM}"),
    shaped("Sourcegraph", f"sgp_{(HEX * 3)[:40]}"),
    shaped("Clojars", f"CLOJARS_{(ALNUM.lower() * 2)[:60]}"),
    shaped("OpenShift", f"sha256~{ALNUM}Ab12345"),
    shaped("Cloudflare", f"v1.0-{HEX}{HEX[:8]}-{HEX * 9}"),
    shaped("Scalingo", f"tk-us-{ALNUM}{ALNUM[:12]}"),
    shaped("Shippo", f"shippo_live_{(HEX * 3)[:40]}"),
    shaped("EasyPost", f"EZAK{(ALNUM * 2)[:54]}"),
    shaped("Duffel", f"duffel_live_{ALNUM}{ALNUM[:8]}"),
    shaped("Harness", f"pat.{ALNUM[:22]}.{HEX}{HEX[:8]}.{ALNUM[:20]}"),
    shaped("Infracost", f"ico-{ALNUM[:32]}"),
    shaped("Octopus Deploy", f"API-{UPPER[:26]}"),
    shaped("1Password", f"ops_eyJ{ALNUM}{ALNUM}"),
    shaped("Mailchimp", f"{HEX * 2}-us12"),
    shaped("Twilio", f"SK{HEX * 2}"),
    shaped("Discord's bots", f"MT{ALNUM[:24]}.Gx1yZ2.{ALNUM}"),
    shaped("Facebook", f"EAAC{ALNUM}{ALNUM}"),
    shaped("Dropbox", f"sl.{ALNUM}{ALNUM}{ALNUM}"),
    shaped("Yandex", f"AQVN{ALNUM}"),
    shaped("Polar", f"polar_oat_{ALNUM}"),
    shaped("Mem0", f"m0-{ALNUM}Ab12"),
)
"""Keys of services, one of each."""
UUID = "8f6d3c1e-5b2a-4c7d-9e0f-1a2b3c4d5e6f"
OF_MORE_SERVICES = (
    shaped("1Password's accounts", "A3-ASWWYB-798JRY-LJVD4-23DC2-86TVM-H43EB"),
    shaped("Adobe", f"p8e-{HEX * 2}"),
    shaped("Artifactory", f"AKCp{ALNUM}{ALNUM}"),
    shaped("Artifactory's references", f"cmVmd{(ALNUM * 2)[:59]}"),
    shaped("Authress", f"sc_{ALNUM[:10]}.{ALNUM[:4]}.acc-{HEX}.{ALNUM}"),
    shaped("AWS of old", f"A3TX{UPPER[:16]}"),
    shaped("Bedrock", f"ABSK{ALNUM}{ALNUM}"),
    shaped("ClickHouse", f"4b1d{(ALNUM * 2)[:38]}"),
    shaped("Discord's users", f"mfa.{ALNUM}{ALNUM}"),
    shaped("Dynatrace in lower case", f"dt0c01.{ALNUM[:24]}.{(ALNUM * 2)[:64]}"),
    shaped("Facebook's apps", f"1234567890123456|{ALNUM[:30]}"),
    shaped("Flutterwave", f"FLWSECK_TEST-{HEX * 2}-X"),
    shaped("Fly", f"fm2_{ALNUM}{ALNUM}"),
    shaped("Frame.io", f"fio-u-{(ALNUM * 2)[:64]}"),
    shaped("GitLab's runners", f"GR1348941{ALNUM[:20]}"),
    typed("GitLab's sessions", "--note", f"_gitlab_session={HEX * 2}", secret=HEX * 2),
    shaped("GoCardless", f"live_{ALNUM}{ALNUM[:4]}"),
    shaped("Google's refresh tokens", f"1//0{ALNUM}"),
    shaped("Grafana of old", f"eyJrIjoi{ALNUM}{ALNUM}"),
    shaped("Harness's services", f"sat.{ALNUM[:22]}.{ALNUM[:24]}.{ALNUM[:20]}"),
    shaped("JSON web tokens in base64", f"ZXlK{ALNUM}{ALNUM}"),
    shaped("Lob", f"live_{(HEX * 3)[:35]}"),
    shaped("Mapbox", f"sk.{ALNUM}{ALNUM}.{ALNUM[:22]}"),
    shaped("MaxMind", f"{ALNUM[:6]}_{ALNUM[:29]}_mmk"),
    shaped("OpenAI's sessions", f"sess-{ALNUM}"),
    shaped("Plaid", f"access-sandbox-{UUID}"),
    shaped("Settlemint", f"sm_aat_{ALNUM[:16]}"),
    shaped("Slack's cookies", f"xoxd-{ALNUM}"),
    shaped("Square", f"EAAA{(ALNUM * 2)[:60]}"),
    shaped("Vault of old", f"s.{ALNUM[:24]}"),
    shaped("Yandex's IAM", f"t1.{ALNUM}.{(ALNUM * 3)[:86]}"),
    shaped("42", f"s-s4t2ud-{HEX * 4}"),
    shaped("a hash of a password", f"$6$salt5678${ALNUM}{ALNUM}"),
    shaped("bcrypt", f"$2b$12${(ALNUM * 2)[:53]}"),
    shaped(
        "a key of PuTTY",
        f"PuTTY-User-Key-File-2: ssh-rsa\nEncryption: none\nPrivate-Lines: 1\nAAAAB3{ALNUM}\nPrivate-MAC: {HEX}",
    ),
)
"""Keys of services and formats that the rules of gitleaks had, and these had not (2026-11-26)."""
BY_SERVICE = (
    typed("a service alone", "env", f"DATADOG={HEX * 2}", secret=HEX * 2),
    typed("an option of a service", "--okta", f"00{ALNUM}", secret=ALNUM),
    typed("a section of a service", "--c", json.dumps({"keys": {"heroku": UUID}}), secret=UUID),
    typed("a setting of a service", f"notify.mailgun={HEX * 2}-{HEX[:8]}-{HEX[8:]}", secret=HEX * 2),
)
"""Names that say whose it is and no more."""
BASIC = base64.b64encode(f"bob:{PLAIN}".encode()).decode()


def quoted(name: str, text: str, secret: str = PLAIN) -> Typed:
    """A text with a secret, as one word: what a person pastes into a note, a prompt or a variable."""
    return typed(name, "--note", text, secret=secret)


IN_TEXTS = (
    quoted(".netrc", f"machine api.wandb.ai\n  login user\n  password {PLAIN}\n"),
    quoted("a kubeconfig", f"users:\n- name: me\n  user:\n    client-key-data: {BASIC}\n    lr: 1\n", BASIC),
    quoted("a kubeconfig's token", f"users:\n- name: me\n  user:\n    token: {PLAIN}\n"),
    quoted("docker's config.json", json.dumps({"auths": {"ghcr.io": {"auth": BASIC}}}), BASIC),
    quoted("docker's identity", json.dumps({"auths": {"ghcr.io": {"identitytoken": PLAIN}}})),
    quoted("a variable of a container", f"env:\n- name: HF_TOKEN\n  value: {PLAIN}\n"),
    quoted("a variable of a container in JSON", json.dumps([{"name": "HF_TOKEN", "value": PLAIN}])),
    quoted("a key and its value in JSON", json.dumps({"key": "HF_TOKEN", "value": PLAIN})),
    quoted("lines of YAML", f"password: |\n  {PLAIN}\nseed: 7"),
    quoted("an encoded URL", "https://host/cb?next=https%3A%2F%2Fbob%3ATr0ub4dorX%40host%2F", "Tr0ub4dorX"),
    quoted("an encoded query", f"https://host/?next=%2Fx%3Ftoken%3D{PLAIN}"),
    quoted("an encoded password", "https://bob:Tr0ub%40dor%2FX@host/x", "Tr0ub%40dor%2FX"),
    quoted("a fragment", f"https://host/cb#access_token={PLAIN}&state=1"),
    quoted("Set-Cookie", f"Set-Cookie: session={PLAIN}; Path=/"),
    quoted("curl -b", f"curl -b session={PLAIN} https://x"),
    quoted("fish", f"set -x HF_TOKEN {PLAIN}"),
    quoted("csh", f"setenv HF_TOKEN {PLAIN}"),
    quoted("export with quotes", f'export HF_TOKEN="{PLAIN}"'),
    quoted("PowerShell", f"$env:HF_TOKEN = '{PLAIN}'"),
    quoted("several lines", f"HF_TOKEN='one\ntwo{PLAIN}'"),
    quoted("an error of OpenAI", f"Incorrect API key provided: {PLAIN}. You can find your API key at x."),
    quoted("an error of requests", f"401 Client Error: Unauthorized for url: https://api.x/v1?api_key={PLAIN}"),
    quoted("an error of pydantic", f"input_value={{'api_key': '{PLAIN}'}}, input_type=dict"),
    quoted("a repr", f"Settings(password='{PLAIN}', url='x')"),
    quoted("prose", f"the password is {PLAIN}, do not tell"),
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
    quoted("Telegram's URL", f"https://api.telegram.org/bot123456789:A{ALNUM[:34]}/sendMessage", ALNUM[:34]),
    quoted("ngrok", f"ngrok authtoken {PLAIN}"),
    quoted("npm's file", f"//registry.npmjs.org/:_authToken={PLAIN}"),
    quoted("XML", f"<server><password>{PLAIN}</password></server>"),
    quoted("Ruby", f":password => '{PLAIN}'"),
    quoted("TOML", f'api_key = "{PLAIN}"'),
    quoted("a form", f"token[]={PLAIN}&page=2"),
    quoted("a name of a file", f"/data/me/hf_{ALNUM}/ckpt-hf_{ALNUM}.pt", ALNUM),
    quoted("a name of a directory", f"runs/token={PLAIN}/x"),
    quoted("a list of words", f"ran ['mysql', '-h', 'x', '-p', '{PLAIN}']"),
    quoted("a list of words in JSON", json.dumps(["python", "x.py", "--token", PLAIN])),
    quoted("JSON in JSON in JSON", json.dumps(json.dumps({"c": json.dumps({"api_key": PLAIN})}))),
)
"""What people paste: files, errors, addresses."""
ALL = (*BY_NAME, *BY_SHAPE, *IN_PLACES, *HELD, *FOUND_LATER, *OF_SERVICES, *OF_MORE_SERVICES, *BY_SERVICE, *IN_TEXTS)
"""Every one, from command lines to texts."""
OF_NO_TEXT = frozenset(("a second word", "Weights & Biases", "several tokens", "--env NAME VALUE"))
"""Secrets that show in the words of a command line, and not in the line as one text."""

CONFIGURATIONS = (
    # (a configuration, the names at which a secret stands), the first nine leaked
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
