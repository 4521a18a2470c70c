"""Scrub: stars in place of secrets, in all text that we write or send.

Known are the values of environment variables and settings whose names say so. Others are known by their form:
addresses with a password, headers, assignments, webhooks, private keys, and tokens that look random. Hexadecimal
text, as of run ids, commits and checksums, is no secret by its form.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from html import escape
from itertools import pairwise
from urllib.parse import quote, quote_plus

STARS = "***"

DENIED = "TRACKER_DIAG_SECRETS"
"""Environment variable: further names of variables and settings that hold secrets, with commas between them."""

SHORTEST = 8
"""Characters of a value that is a secret wherever it is; a shorter one is starred next to its name alone."""

STRONG = (
    r"pass(?:word|wd|phrase|code)|passwd|pwd|secrets?|credentials?|creds|authorization|bearer|cookies?|dsn|jwt|pat|"
    r"webhooks?|notify|connection_?string|conn_?str|(?:api|access|private|secret|account|signing|encryption|ssh|"
    r"openai|hf|wandb|shared|master|client|auth)[_-]?key|sas|signature"
)
WEAK = r"pass|tokens?|auth"
"""As a word in a sentence they say nothing."""
GLUED = r"(?:password|passwd|passphrase|secret|apikey)"
"""Also in the midst of a word, as in PGPASSWORD."""
NAME = re.compile(rf"{GLUED}|(?<![a-z])(?:{STRONG}|{WEAK})(?![a-z])")
"""In the name of a variable or setting that holds a secret; in lower case."""
STRICT = re.compile(rf"{GLUED}|(?<![a-z])(?:{STRONG})(?![a-z])")
"""Such a name that no sentence has by chance."""
NO_SECRET = re.compile(
    r"(?:eos|bos|pad|unk|mask|sep|cls|stop|image|special|eot|end|begin|start|think|max|min|num|new|prompt|response|"
    r"completion|model|tool)[_-]?tokens?(?:_id)?s?$|tokens?_(?:per|count|id|level|mean|sum)"
)
"""Names of settings of tokens of language."""
NUMBER = re.compile(r"[+-]?[\d.,_]+(?:e[+-]?\d+)?|true|false|none|null|nan|inf|", re.IGNORECASE)

_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s&;,"'<>()\[\]{}]+)"""
ADDRESS = re.compile(r"(//)(?!\d+[/\s])[^\s:/@\"'<>]+:(?!\d+(?:[/\s?#,;\"')]|$))(?:[^\s\"'<>]| (?=[^\s\"'<>/]*@))*@")
USER = re.compile(r"(//)[^\s:/@\"'<>?#]+@")
FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), STARS),
    (ADDRESS, rf"\1{STARS}@"),
    (USER, rf"\1{STARS}@"),
    (re.compile(
        r"(hooks\.slack\.com/|discord(?:app)?\.com/api/webhooks/|webhook\.office\.com/|office\.com/webhook/|"
        r"api\.telegram\.org/bot|chat\.googleapis\.com/v1/spaces/|maker\.ifttt\.com/trigger/)[^\s\"'<>]+"
    ), rf"\1{STARS}"),
    (re.compile(
        r"(?<![\w-])((?i:proxy-authorization|authorization|set-cookie|cookie|x-[\w-]{0,40}(?:key|token|secret|auth)))"
        r"([\"']?\s*:\s*[\"']?)[^\"'\n<>]+"
    ), rf"\1\2{STARS}"),
    (re.compile(r"\b(?i:(bearer|basic|negotiate))(\s+)(?=\S*[\d=_.-])[\w.+/=~-]{6,}"), rf"\1\2{STARS}"),
    (re.compile(
        r"\b(?:sk-[\w-]{8,}|hf_[A-Za-z0-9]{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{8,}|"
        r"A(?:KIA|SIA)[A-Z0-9]{12,}|AIza[\w-]{20,}|dapi[0-9a-f]{16,}|npm_\w{20,}|pypi-[\w-]{20,}|SG\.[\w.-]{20,}|"
        r"ya29\.[\w.-]{10,}|eyJ[\w-]{6,}\.[\w.-]+)"
    ), STARS),
)  # fmt: skip
NAMED = (
    re.compile(rf"(?<![\w-])--([\w.-]{{1,80}})(=|\s+)(?!--)({_VALUE})"),
    re.compile(rf"(?<![\w.-])([\w.-]{{1,80}})([\"']?\s*=\s*|[\"']\s*:\s*|:\s*)({_VALUE})"),
)
"""A name, what is between, and a value."""
RANDOM = re.compile(r"(?<![\w+=/.-])[A-Za-z0-9+=]{20,120}(?![\w+=/-])")


def is_secret(name: str) -> bool:
    """Whether a variable or setting of this name holds a secret."""
    return _is_secret(name.lower(), os.environ.get(DENIED, ""))


@lru_cache(4096)
def _is_secret(low: str, denied: str) -> bool:
    """The answer for a name in lower case. Each text that leaves asks it of every variable of the environment."""
    if low in {name.strip().lower() for name in denied.split(",")} - {""}:
        return True
    return bool(NAME.search(low)) and not NO_SECRET.search(low)


def secrets_of(config: Mapping[str, object]) -> list[str]:
    """Values of settings that are secrets by their names; texts alone, as a number is none."""
    return [str(value) for name, value in config.items() if isinstance(value, str) and value and is_secret(name)]


def without_password(address: str) -> str:
    """An address with its user and password replaced by stars."""
    return USER.sub(rf"\1{STARS}@", ADDRESS.sub(rf"\1{STARS}@", address))


def without_secrets(text: str, known: Collection[str] = ()) -> str:
    """`text` with stars in place of secrets.

    Args:
        known: further secrets, of the run's settings say.
    """
    held = tuple(value for name, value in os.environ.items() if is_secret(name))
    if (values := _pattern_of((*held, *known))) is not None:
        text = values.sub(STARS, text)
    for pattern, stars in FORMS:
        text = pattern.sub(stars, text)
    for named in NAMED:
        text = named.sub(_next_to_name, text)
    return RANDOM.sub(lambda match: STARS if _is_random(match[0]) else match[0], text)


def _next_to_name(match: re.Match[str]) -> str:
    """Stars for a value next to its name, unless that is a number or the name of tokens of language."""
    name, between, value = match.groups()
    sentence = between.startswith(":") and not STRICT.search(name.lower())
    if sentence or NUMBER.fullmatch(value.strip("\"'")) or not is_secret(name):
        hidden = match.re.sub(_next_to_name, value)  # another name may be in it
    else:
        end = value[0] if value[0] in "\"'" else ""
        hidden = f"{end}{STARS}{end}"
    return match[0].removesuffix(value) + hidden


@lru_cache(16)
def _pattern_of(secrets: tuple[str, ...]) -> re.Pattern[str] | None:
    """What finds any of `secrets`, however it is written, the longest first; None where there is none."""
    forms = {form for value in secrets for part in _parts(value) for form in _forms(part)}
    return re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True)))) if forms else None


def _parts(value: str) -> Iterator[str]:
    """A secret and what of it is one by itself: its lines and words, and of an address all behind the host."""
    for part in {value, *value.split(), *re.findall(r"://[^/\s]+(/[^\s]+)", value), *re.findall(r"=([^;&\s]+)", value)}:
        if len(part.strip()) >= SHORTEST:
            yield part.strip()


def _forms(value: str) -> Iterator[str]:
    """How it may be written."""
    yield from (value, quote(value, safe=""), quote(value), quote_plus(value), escape(value))
    yield from (json.dumps(value)[1:-1], repr(value)[1:-1])


def _is_random(text: str) -> bool:
    """Whether `text` has capitals, small letters and figures in so many turns as no name has."""
    if re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", text):
        return False
    kinds = ["0" if char.isdigit() else "a" if char.islower() else "A" for char in text]
    turns = sum(kind != after for kind, after in pairwise(kinds))
    return {"0", "a", "A"} <= set(kinds) and turns >= len(text) / 3
