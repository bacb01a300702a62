"""Whether a name says that its value is a secret: `HF_TOKEN`, `--wandb-key`, `db.pass`; not `max_tokens`, `sort_key`.

A name is read in its words, and a dotted name in its sections: `credentials.value` and `tokens.hf` are secrets because
of the section. In doubt it is a secret, but for the words that fill the configuration of a language model. A few names
decide with their value: the text under `tokens` is a secret, the number is a budget.
"""

import re
from enum import Enum

REDACTED = "<redacted>"
NO_SECRETS = frozenset({"", "true", "false", "null", "none", "value", REDACTED})
"""Values, in lower case, that are never secrets."""


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBERS = re.compile(r"[\[(\d.+-][\d\s.,_+eE%kKmMbBgGtT()\[\]-]*")
_PLACEHOLDER = re.compile(
    r"VALUE(?:,VALUE)*[`:,;.]{0,2}"  # in a sentence of this package: KEY=VALUE,VALUE: a value for each run
    r"|<[^<>\s]{1,60}>|\$\{[A-Za-z_][A-Za-z0-9_]{0,60}\}|\$[A-Z][A-Z_]{2,60}"
)
"""What stands for a value: VALUE, a special token or a word in angle brackets, a variable of a shell."""
_LOWER_CASE = re.compile(r"[a-z_./ -]{1,32}")
_SECRETS = word_set(
    "password passwords passwd passphrase passphrases passcode pw pwd secret secrets credential credentials cred creds"
    " apikey apikeys auth oauth authorization pat cookie cookies jwt webhook bearer sessionid phpsessid jsessionid"
)
_SECRET_ENDS = ("secret", "secrets", "credential", "credentials", "pwd", "apikey", "apikeys")
_QUERY_SECRETS = frozenset({"sig", "signature"})
_BEFORE_ANY_KEY = word_set("access account api client encryption license private secret signing ssh storage")
"""Before `key`, wherever the two stand: AWS_ACCESS_KEY_ID."""
_SERVICES = _BEFORE_ANY_KEY | word_set(
    "admin anthropic app auth aws azure bot brave cerebras client clientkey cohere comet databricks datadog db dd"
    " deepinfra deepseek deploy discord docker elevenlabs exa fireworks gcp gemini github gitlab google gpg grok groq"
    " hf hmac hub huggingface identity jina judge jwt langfuse langsmith logger login master mistral mlflow mysql"
    " neptune ngc nvidia openai openrouter perplexity pg pgp pinecone postgres proxy pypi redis refresh registry"
    " replicate root rsa sas sendgrid sentry serpapi serper server service session shared slack smtp sql ssl stripe"
    " subscription swanlab tavily telegram tls together twilio vault voyage wandb webhook xai xi"
)
"""Before a `key`, `token` or `pass` at the end of a name: whose it is."""
_KEYED = word_set(
    "adafruit adobe airtable algolia anthropic artifactory asana atlassian beamer bitbucket bittrex cloudflare codecov"
    " cohere coinbase confluent contentful databricks datadog deepseek discord droneci dropbox elevenlabs etsy facebook"
    " fastly finicity finnhub flickr freshbooks gitter gocardless groq heroku hubspot intercom jfrog kraken kucoin"
    " langfuse langsmith launchdarkly linkedin mailchimp mailgun mapbox mattermost meraki messagebird mistral netlify"
    " newrelic nytimes okta openai openrouter pinecone plaid privateai rapidapi replicate sendbird sendgrid sentry"
    " slack snyk sonar squarespace stripe sumologic tavily telegram travis twilio twitch twitter wandb yandex zendesk"
)
"""Services whose bare name may stand before a key, as the rules of gitleaks have it: `DATADOG=3f9a1c7e5b2d8046`."""
KEYED = re.compile(f"(?:{'|'.join(sorted(_KEYED))})$", re.IGNORECASE)
_KEY = re.compile(r"(?=(?:[^0-9]*[0-9]){3})(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_=+-]{20,200}")
"""Long, with letters and several digits."""
_BEFORE_HARMLESS_KEY = word_set(
    "answer batch by cache chosen class column columns config content context data dataset dict embedding env"
    " environment example field fn foreign function gradient group hash id image images index input item json label"
    " lookup map message messages meta metadata metric metrics mm modal model module name num order output parameter"
    " partition primary prng problem prompt public query question random ref reference rejected response reward"
    " rewards rng row sample seed sequence solution sort source state step system tag target task text tool turn"
    " unique value video weight"
)
"""Words before a `key` that names a column, a table entry or a random state."""
_BEFORE_HARMLESS_TOKEN = word_set(
    "additional assistant audio bad boi bos by cls completion decoder end eod eoi eom eos eot first forced image"
    " initializer last mask modifier new next pad per placeholder prompt sep special start stop suppress system think"
    " tool unk user video"
)
_BEFORE_HARMLESS_TOKENS = _BEFORE_HARMLESS_TOKEN | word_set(
    "batch context cut data dataset draft dummy encoder eval every generated generation grad ignore input loss max mean"
    " microbatch min missing model num number of out output prefill prompts question response reward sample sampled"
    " sequence student target teacher test thinking top total train training valid validation vocab words"
)
_BEFORE_HARMLESS_PASS = word_set("backward by eval forward first multi n num one optimizer per second single two")
_ABOUT = word_set(
    "attempts count enabled interval length limit method mode num provider required retries seconds size timeout ttl"
    " type user username"
)
"""At the end of a name that says something about a secret: RAY_AUTH_MODE, auth.timeout."""
_PLACES = frozenset({"id", "ids", "index", "text", "type", "weight"})
"""Below a section `token`: what a vocabulary says of one."""


class Holds(Enum):
    """Kind of value that a name implies; the text lists the values that are not secrets nevertheless."""

    NO_SECRET = "any value"
    SECRET = "true, false, null, or nothing"
    SECRET_TEXT = "and numbers"
    SECRET_UNLESS_SHORT = "and numbers of up to six characters"
    PERHAPS = "and lower-case words"


def holds(name: str, *, is_option: bool = False, is_query: bool = False) -> Holds:
    """Return what a name says of its value.

    `is_option`: it is an option of a command line or a variable of an environment, where a bare `key` is a secret;
    `is_query`: a parameter of a URL, where `sig` is one too.
    """
    if name in ("PWD", "OLDPWD"):
        return Holds.NO_SECRET
    is_option = is_option or is_query
    before, outer = "", Holds.NO_SECRET
    *sections, last = [words for words in map(_words_of, name.split(".")) if words] or [[""]]
    for section in sections:
        outer = _of_section(section, before, outer)
        before = section[-1]
    if is_query and last[-1] in _QUERY_SECRETS:
        return Holds.SECRET
    is_strict = is_option and (len(last) == 1 or is_query or name.isupper())
    return _below(last, before, outer, _of_words(last, before, is_option, is_strict))


def holds_secret(name: str, value: str, *, is_option: bool = False, is_query: bool = False) -> bool:
    """Return whether a value of this name is a secret; the value is text as a command line or JSON spells it."""
    found = holds(name, is_option=is_option, is_query=is_query)
    if found is Holds.NO_SECRET:
        return is_key_of_service(name, value)
    plain = value.strip().strip("\"'") if len(value) <= 100 else value
    if plain.lower() in NO_SECRETS or _PLACEHOLDER.fullmatch(plain):
        return False
    if found is Holds.SECRET:
        return True
    if found is Holds.SECRET_TEXT:
        return not is_number(plain)
    if is_number(plain) and len(plain) <= 6:
        return False
    return found is Holds.SECRET_UNLESS_SHORT or not _LOWER_CASE.fullmatch(plain)


def ends_with_service(name: str) -> bool:
    """Return whether the last word of a name is a service whose keys may follow it."""
    return not _KEYED.isdisjoint(words_of(name)[-1:])


def is_key_of_service(name: str, value: str) -> bool:
    """Return whether a name is that of a service alone, and the value looks like a key."""
    return len(value) <= 200 and _KEY.fullmatch(value) is not None and ends_with_service(name)


def is_secret_name(name: str) -> bool:
    """Return whether something of this name holds a secret: "HF_TOKEN", "db.password"; not "max_tokens"."""
    return holds(name) in (Holds.SECRET, Holds.SECRET_TEXT, Holds.SECRET_UNLESS_SHORT)


def is_number(value: str) -> bool:
    """Return whether a text is a number or a list of numbers: 512, 1e9, 2B, [1, 2]."""
    return _NUMBERS.fullmatch(value) is not None


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case: hf, token of HF_TOKEN and of hfToken."""
    return [word.lower() for word in _WORDS.findall(name)]


def _words_of(section: str) -> list[str]:
    """The words of one section; the number that tells keys apart, as in API_KEY_2, is left out."""
    words = words_of(section)
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    return words


def _of_section(words: list[str], before: str, outer: Holds) -> Holds:
    """What a section says of all that is below it."""
    if outer is not Holds.NO_SECRET:
        return outer
    found = _of_words(words, before, is_option=False, is_strict=False)
    return Holds.NO_SECRET if found is Holds.PERHAPS else found


def _below(words: list[str], before: str, outer: Holds, own: Holds) -> Holds:
    """What a name says whose last section has these words, below a section that may be one of secrets."""
    if words[-1] in _ABOUT:
        return Holds.NO_SECRET
    if before in ("key", "keys") and words[-1] in _SERVICES:
        return Holds.SECRET
    if own is Holds.SECRET or outer is Holds.NO_SECRET:
        return own
    if before in ("token", "tokens") and (words[-1] in _BEFORE_HARMLESS_TOKENS or words[-1] in _PLACES):
        return Holds.NO_SECRET
    return outer


def _of_words(words: list[str], before: str, is_option: bool, is_strict: bool) -> Holds:
    """What the words of one section say; `before` is the last word of the section above it.

    `is_strict`: a `key` without a known owner is a secret even with a lower-case word, as in --key and ANY_KEY.
    """
    if words[-1] in _ABOUT:
        return Holds.NO_SECRET
    for previous, word in zip([before, *words], words):  # noqa: B905 - older Pythons import this, and know no strict
        if word in _SECRETS or _is_joined_secret(word):
            return Holds.SECRET
        if word in ("key", "keys") and previous in _BEFORE_ANY_KEY:
            return Holds.SECRET
        if previous == "gitlab" and word == "session":
            return Holds.SECRET
        if previous == "pass" and word in ("code", "phrase", "word"):
            return Holds.SECRET
    last, previous = words[-1], words[-2] if len(words) > 1 else before
    if last in ("key", "keys"):
        return _of_key(last, previous, is_strict)
    if last in ("token", "tokens"):
        return _of_token(last, previous)
    if last == "pass" and previous not in _BEFORE_HARMLESS_PASS:
        return Holds.SECRET if is_option or previous in _SERVICES else Holds.SECRET_UNLESS_SHORT
    return Holds.NO_SECRET


def _is_joined_secret(word: str) -> bool:
    """Whether a word has grown together: pgpassword, hftoken, wandbkey; not tokenizer, monkey, compass."""
    if "password" in word or "passwd" in word or "passphrase" in word or word.endswith(_SECRET_ENDS):
        return True
    for end in ("key", "keys", "token", "tokens", "pass"):
        if word.endswith(end) and word[: -len(end)] in _SERVICES:
            return True
    return False


def _of_key(word: str, previous: str, is_strict: bool) -> Holds:
    if previous in _SERVICES:
        return Holds.SECRET
    if word == "keys" or previous in _BEFORE_HARMLESS_KEY:
        return Holds.NO_SECRET
    return Holds.SECRET if is_strict else Holds.PERHAPS


def _of_token(word: str, previous: str) -> Holds:
    if previous in (_BEFORE_HARMLESS_TOKEN if word == "token" else _BEFORE_HARMLESS_TOKENS):
        return Holds.NO_SECRET
    return Holds.SECRET if word == "token" or previous in _SERVICES else Holds.SECRET_TEXT
