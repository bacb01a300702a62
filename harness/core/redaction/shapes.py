"""Patterns of well-known secrets, wherever they occur: keys of services, PEM blocks, passwords of URLs.

The formats are those that the services document, and that scanners of repositories (gitleaks, detect-secrets) look for.
Each pattern of a service is linear: what repeats without a limit ends it, and cannot fail after that.
"""

import re

from .names import REDACTED

_AT_START = r"(?<![A-Za-z0-9])"
SERVICES = (
    # (whose, pattern): a new service is a new line
    ("OpenAI, Anthropic, DeepSeek, OpenRouter, LangFuse", r"(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"),
    ("Stripe", r"(?:sk|pk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/=]{16,}"),
    ("Hugging Face", r"(?:hf|api_org)_[A-Za-z0-9]{16,}"),
    ("NVIDIA", r"nvapi-[A-Za-z0-9_-]{16,}"),
    ("Weights & Biases", r"wandb_v\d{1,4}_[A-Za-z0-9_]{16,}"),
    ("Groq", r"gsk_[A-Za-z0-9]{16,}"),
    ("xAI", r"xai-[A-Za-z0-9_-]{16,}"),
    ("Replicate", r"r8_[A-Za-z0-9]{16,}"),
    ("Fireworks", r"fw_[A-Za-z0-9]{20,}"),
    ("Together", r"tgp_v\d{1,4}_[A-Za-z0-9_-]{16,}"),
    ("Cerebras", r"csk-[A-Za-z0-9]{16,}"),
    ("Perplexity", r"pplx-[A-Za-z0-9]{16,}"),
    ("Tavily", r"tvly-[A-Za-z0-9_-]{16,}"),
    ("Jina", r"jina_[A-Za-z0-9]{16,}"),
    ("Pinecone", r"pcsk_[A-Za-z0-9_]{16,}"),
    ("LangSmith", r"lsv2_(?:pt|sk)_[A-Za-z0-9_]{16,}"),
    ("Modal", r"(?:ak|as)-[A-Za-z0-9]{22}(?![A-Za-z0-9])"),
    ("GitHub", r"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}"),
    ("GitLab", r"(?:glpat|gldt|glrt|glrtr|glptt|glft|glcbt|glimt|glagent|gloas|glsoat|glffct)-[A-Za-z0-9_.=-]{16,}"),
    ("npm", r"npm_[A-Za-z0-9]{20,}"),
    ("PyPI", r"pypi-AgE[A-Za-z0-9_-]{10,}"),
    ("RubyGems", r"rubygems_[a-f0-9]{32,}"),
    ("AWS", r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("Alibaba, Adobe", r"LTAI[A-Za-z0-9]{16,}|p8e-[A-Za-z0-9]{32}"),
    ("Google", r"AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}|GOCSPX-[A-Za-z0-9_-]{16,}"),
    (
        "Cloud tokens: DigitalOcean, Databricks, Fly",
        r"do[opr]_v1_[a-f0-9]{32,}|dapi[a-f0-9]{32}|fo1_[A-Za-z0-9_-]{20,}|fm(?:1[ar]|2)_[A-Za-z0-9+/=]{60,}",
    ),
    (
        "HashiCorp",
        r"hv[sbr]\.[A-Za-z0-9_-]{16,}|s\.(?=[A-Za-z]{0,23}\d)[A-Za-z0-9]{24}(?![\w.-])|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{16,}",
    ),
    ("Docker", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{16,}"),
    ("Slack", r"xox[a-z](?:\.xox[bp])?-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"),
    ("SendGrid, Brevo, Mailgun", r"SG\.[A-Za-z0-9_.-]{16,}|xkeysib-[a-f0-9-]{32,}|key-[a-f0-9]{32}(?![a-f0-9])"),
    ("Telegram", r"\d{8,10}:A[A-Za-z0-9_-]{34}(?![A-Za-z0-9_-])"),
    (
        "Square, Shopify, PayPal",
        r"sq0[a-z]{3}-[A-Za-z0-9_-]{20,}|EAAA[A-Za-z0-9_-]{40,60}(?![\w/+=-])|shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}",
    ),
    ("Sentry, Grafana", r"sntry[su]_[A-Za-z0-9+/=_-]{20,}|gl(?:sa|c)_[A-Za-z0-9+/=_]{20,}"),
    ("Notion, Linear, Postman", r"ntn_[A-Za-z0-9]{30,}|lin_api_[A-Za-z0-9]{20,}|PMAK-[A-Za-z0-9-]{20,}"),
    (
        "Pulumi, Doppler, PlanetScale",
        r"pul-[a-f0-9]{40}|dp\.[a-z]{2,5}\.[A-Za-z0-9]{30,}|pscale_[a-z]{1,20}_[\w.=-]{20,}",
    ),
    ("age", r"AGE-SECRET-KEY-1[A-Z0-9]{20,}"),
    ("Azure", r"[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~.-])"),
    (
        "Hosts of GPUs: RunPod, Lambda, Anyscale",
        r"rpa_[A-Z0-9]{30,}|secret_[\w-]{1,80}_[a-f0-9]{32}\.\w+|aph0_[\w-]{20,}",
    ),
    ("Search and agents: Firecrawl, E2B, LlamaCloud", r"fc-[a-f0-9]{32}|e2b_[a-f0-9]{32,}|llx-[A-Za-z0-9]{30,}"),
    ("Voyage, ElevenLabs, Kaggle", r"pa-[A-Za-z0-9_-]{40,}|sk_[a-f0-9]{40,}|KGAT_[a-f0-9]{32}"),
    ("Atlassian, Airtable, Figma", r"ATATT3[\w=-]{30,}|pat[A-Za-z0-9]{14}\.[a-f0-9]{64}|figd_[\w-]{20,}"),
    ("HubSpot, Contentful, Typeform", r"pat-(?:na|eu|ap)\d-[a-f0-9-]{36}|CFPAT-[\w-]{30,}|tfp_[\w.=-]{40,}"),
    (
        "Dynatrace, New Relic, Sonar",
        r"dt0[cs]\d\d\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{64}|NR(?:AK|JS|II)-[\w-]{18,}|sq[pua]_[a-f0-9]{40}",
    ),
    (
        "Heroku, Netlify, Vercel",
        r"HRKU-[\w-]{30,}|nfp_[A-Za-z0-9]{30,}|vercel_[a-z]{1,20}_rw_\w{20,}|vc[pkira]_\w{24,}",
    ),
    (
        "Supabase, Neon, Tailscale",
        r"sb[ps]_[a-f0-9]{40}|sb_secret_[\w-]{20,}|napi_[a-z0-9]{40,}|tskey-[a-z]{1,20}-[\w-]{16,}",
    ),
    (
        "Prefect, Sourcegraph, Clojars",
        r"pn[ub]_[A-Za-z0-9]{36}|sgp_(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}|CLOJARS_[a-z0-9]{60}",
    ),
    ("OpenShift, Cloudflare, Scalingo", r"sha256~[\w-]{43}|v1\.0-[a-f0-9]{24}-[a-f0-9]{100,}|tk-us-[\w-]{40,}"),
    (
        "Shippo, EasyPost, Duffel",
        r"shippo_(?:live|test)_[a-fA-F0-9]{40}|EZ[AT]K[A-Za-z0-9]{54}|duffel_(?:test|live)_[\w=-]{40,}",
    ),
    (
        "Harness, Infracost, Readme, Octopus",
        r"[ps]at\.[\w-]{22}\.[A-Za-z0-9]{24}\.\w{20}|ico-\w{32}|rdme_[a-z0-9]{60,}|API-[A-Z0-9]{26}",
    ),
    (
        "1Password, Mailchimp, Twilio",
        r"ops_eyJ[\w=-]{40,}|[a-f0-9]{32}-us\d{1,2}(?!\d)|SK[a-fA-F0-9]{32}(?![a-fA-F0-9])",
    ),
    ("Discord, Facebook, Dropbox", r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}|EAA[MC]\w{60,}|sl\.(?:u\.)?[\w-]{100,}"),
    ("Yandex", r"AQVN[\w-]{35,}|t1\.[\w-]{1,400}={0,2}\.[\w-]{86}|YC[\w-]{38}(?![\w-])"),
    ("Polar, Mem0, Frame.io", r"polar_[a-z]{1,20}_\w{20,}|m0-[A-Za-z0-9]{40}|fio-u-[\w=-]{64}"),
    ("1Password's keys of accounts", r"A3-[A-Z0-9]{6}(?:-[A-Z0-9]{5,11}){4,5}(?![A-Z0-9])"),
    ("Artifactory", r"AKCp[A-Za-z0-9]{60,}|cmVmd[A-Za-z0-9]{59}(?![A-Za-z0-9])"),
    (
        "Authress",
        r"(?:sc|ext|scauth|authress)_[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[\w+/=-]{30,}",
    ),
    ("ClickHouse", r"4b1d[A-Za-z0-9]{38}(?![A-Za-z0-9])"),
    ("Facebook's apps", r"\d{15,16}(?:\||%7C)[\w-]{27,40}(?![\w-])"),
    ("Flutterwave, GoCardless", r"FLW(?:SECK|PUBK)(?:_TEST)?-[A-Za-z0-9]{12,}(?:-X)?|live_[\w=-]{40,}"),
    ("Lob", r"(?:live|test)_(?:[a-f0-9]{35}|pub_[a-f0-9]{31})(?![A-Za-z0-9])"),
    ("runners of GitLab, Grafana of old", r"GR1348941[\w-]{20,}|eyJrIjoi[A-Za-z0-9+/]{40,}={0,3}"),
    (
        "42, MaxMind, Settlemint",
        r"s-s4t2(?:ud|af)-[a-f0-9]{64}|[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk|sm_[aps]at_[A-Za-z0-9]{16}",
    ),
    ("Plaid", r"access-(?:sandbox|development|production)-[a-f0-9]{8}(?:-[a-f0-9]{4}){3}-[a-f0-9]{12}"),
    ("Mapbox", r"[pst]k\.[A-Za-z0-9_-]{60,400}\.[A-Za-z0-9_-]{20,}"),
    ("Discord's users, OpenAI's sessions, Bedrock", r"mfa\.[\w-]{60,}|sess-[A-Za-z0-9]{32,}|ABSK[A-Za-z0-9+/=]{60,}"),
    ("Google's refresh tokens", r"1//0[\w-]{30,}"),
    ("hashes of passwords", r"\$(?:apr1|[156y]|2[abxy]\$\d\d)\$[./A-Za-z0-9$=,]{20,}"),
    ("JSON web tokens in base64", r"ZXlK[A-Za-z0-9+/_-]{40,}={0,2}"),
)
_SERVICE = re.compile(_AT_START + "(?:" + "|".join(pattern for _, pattern in SERVICES) + ")")
_ELSEWHERE = re.compile(
    r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"  # JSON web tokens
    r"|(?<=/bot)\d{8,10}:A[A-Za-z0-9_-]{34}"  # Telegram
    r"|(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[A-Za-z0-9/_-]+"
    r"|(?<=/api/webhooks/)\d+/[A-Za-z0-9_-]+"  # Discord
    r"|(?<=webhook\.office\.com/)[^\s\"'<>]+"
    r"|(?i:(?<=bearer ))[A-Za-z0-9._~+/=-]{8,}"
)
_BASIC = re.compile(r"(?i:(?<=basic ))[A-Za-z0-9+/=]{8,}")
_PRIVATE_KEY = re.compile(r"-----BEGIN[A-Z0-9 _-]{0,100}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d")
_PRIVATE_KEY_END = re.compile(r"-----END[A-Z0-9 _-]{0,100}PRIVATE KEY(?: BLOCK)?-----|Private-MAC: \w+")
_AFTER_SCHEME = re.compile(r"(?<=://)(?:(?!://)[^\s\"])+")
_USER_AND_PASSWORD = re.compile(
    r"(?<![\w./:@%+-])(?!mailto:)[A-Za-z][\w.+-]{0,63}:[^\s:/@\"']{3,256}@(?=[A-Za-z0-9])(?!sha\d)"
)
"""Without a scheme, as a proxy may be given; not an image of containers, which has the digest of its bytes there."""


def redact_shapes(text: str) -> str:
    """Return a text without what has the shape of a secret, whatever it is called."""
    if "-----BEGIN" in text or "PuTTY" in text:
        text = _redact_private_keys(text)
    if "://" in text:
        text = _AFTER_SCHEME.sub(lambda match: _redact_authority(match[0]), text)
    if "@" in text:
        text = _USER_AND_PASSWORD.sub(f"{REDACTED}@", text)
    text = _SERVICE.sub(REDACTED, text)
    text = _ELSEWHERE.sub(REDACTED, text)
    return _BASIC.sub(lambda match: match[0] if _is_prose(match[0]) else REDACTED, text)


def _redact_private_keys(text: str) -> str:
    """Without the blocks of private keys; one that is cut reaches to the end."""
    parts, at = [], 0
    while (begin := _PRIVATE_KEY.search(text, at)) is not None:
        end = _PRIVATE_KEY_END.search(text, begin.end())
        parts += [text[at : begin.start()], REDACTED]
        at = len(text) if end is None else end.end()
    return "".join([*parts, text[at:]])


def _redact_authority(rest: str) -> str:
    """What follows `://` without user and password, also where a password holds `/` or `@`."""
    end = next((at for at, character in enumerate(rest) if character in "/?#"), len(rest))
    at = rest.rfind("@", 0, end)
    host = rest[at + 1 : end]
    user, colon, port = (rest[:at] if at >= 0 else rest[:end]).partition(":")
    if at < 0:
        if not colon or port.isdigit() or user.startswith("["):  # a host, its port, an address of IPv6
            return rest
        at = rest.rfind("@")
    elif colon and not _is_host(host):
        at = max(at, rest.rfind("@"))
    return rest if at < 0 else f"{REDACTED}{rest[at:]}"


def _is_host(text: str) -> bool:
    return "." in text or ":" in text or text == "localhost" or text.startswith("[")


def _is_prose(word: str) -> bool:
    """Whether what follows `basic` is a word of a language, and no base64."""
    return word.isalpha() and (word.islower() or word.istitle() or word.isupper())
