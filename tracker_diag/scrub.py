"""Scrub: stars in place of secrets, in all text that we write or send.

Known are the values of environment variables, settings and arguments whose names say so. Others are known by their
form: addresses with a password, headers, assignments, webhooks, private keys, and tokens that look random. Hexadecimal
text, as of run ids, commits and checksums, is no secret by its form.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from html import escape
from itertools import pairwise
from string import ascii_letters, digits
from typing import TypeAlias
from urllib.parse import quote, quote_plus

STARS = "***"

DENIED = "TRACKER_DIAG_SECRETS"
"""Environment variable: further names of variables and settings that hold secrets, with commas between them."""

LONGEST_NAME = 80

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
WORDS_ALONE = re.compile(r"[a-z_ -]*")
"""Values as of a choice, under a name that need not be that of a secret."""
NUMBER = re.compile(r"[+-]?[\d.,_]+(?:e[+-]?\d+)?|true|false|none|null|nan|inf|", re.IGNORECASE)

_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s&;,"'<>()\[\]{}]+)"""
ADDRESS = re.compile(
    r"(//)(?=[^@]{1,600}@)(?!\d+[/\s])[^\s:/@\"'<>]+:(?!\d+(?:[/\s?#,;\"')]|$))"
    r"(?:[^\s\"'<>]| (?=[^\s\"'<>/]{0,200}@)){0,500}@"
)
PASSWORD = re.compile(r"//[^\s:/@\"'<>]+:([^\s\"'<>/@]+)@")
USER = re.compile(r"(//)[^\s:/@\"'<>?#]+@")
KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
PREFIXES = (
    "sk-", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "akia", "asia", "aiza",
    "dapi", "npm_", "pypi-", "sg.", "ya29.", "eyj",
)  # fmt: skip
HOOKS = (
    "hooks.slack.com/", "discord.com/api/webhooks/", "discordapp.com/api/webhooks/", "webhook.office.com/",
    "office.com/webhook/", "api.telegram.org/bot", "chat.googleapis.com/v1/spaces/", "maker.ifttt.com/trigger/",
)  # fmt: skip
FORMS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (HOOKS, re.compile(rf"(?i:({'|'.join(map(re.escape, HOOKS))}))[^\s\"'<>]+"), rf"\1{STARS}"),
    (("proxy-authorization", "authorization", "set-cookie", "cookie", "x-"), re.compile(
        r"(?<![\w-])((?i:proxy-authorization|authorization|set-cookie|cookie|x-[\w-]{0,40}(?:key|token|secret|auth)))"
        r"([\"']?\s*:\s*[\"']?)[^\"'\n<>]+"
    ), rf"\1\2{STARS}"),
    (("bearer", "basic", "negotiate"), re.compile(
        r"\b(?i:(bearer|basic|negotiate))(\s+)(?=\S*[\d=_.-])[\w.+/=~-]{6,}"
    ), rf"\1\2{STARS}"),
    (PREFIXES, re.compile(
        r"\b(?:sk-[\w-]{8,}|hf_[A-Za-z0-9]{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{8,}|"
        r"A(?:KIA|SIA)[A-Z0-9]{12,}|AIza[\w-]{20,}|dapi[0-9a-f]{16,}|npm_\w{20,}|pypi-[\w-]{20,}|SG\.[\w.-]{20,}|"
        r"ya29\.[\w.-]{10,}|eyJ[\w-]{6,400}\.[\w.-]+)"
    ), STARS),
)  # fmt: skip
"""How each may begin, in lower case, what it is then, and what is put in its place.

The beginnings are what makes it cheap: `find` is a hundred times as fast as an expression that is tried everywhere.
"""
WORDS = (
    "pass", "pwd", "secret", "cred", "auth", "bearer", "cookie", "dsn", "jwt", "pat", "webhook", "notify", "conn",
    "key", "sas", "signature", "token",
)  # fmt: skip
"""One of these is in each name that `NAME` takes."""
NAMED = re.compile(
    rf"(?:(?<![\w-])--([\w.-]{{1,80}})(=|\s+)(?!--)|"
    rf"(?<![\w.-])([\w.-]{{1,80}})([\"']?\s*=\s*|[\"']\s*:\s*|:\s*))({_VALUE})"
)
"""A name, what is between, and a value."""
WORD = re.compile(r"[\w.-]+")
RANDOM = re.compile(r"(?<![\w+=/.-])[A-Za-z0-9+=]{20,120}(?![\w+=/-])")
_ALPHABET = (ascii_letters + digits + "+=").encode()
IN_RANDOM = bytes(ord("a") if byte in _ALPHABET else ord(" ") for byte in range(256))
"""Which bytes `RANDOM` is made of, for `translate`."""

_learnt: dict[str, None] = {}
"""Secrets of settings and arguments, in their order."""

Place: TypeAlias = tuple[int, int, str]
"""Where something begins and ends, and what is put in its place."""


def is_secret(name: str) -> bool:
    """Whether a variable or setting of this name holds a secret."""
    return _is_secret(name.lower(), os.environ.get(DENIED, ""))


@lru_cache(4096)
def _is_secret(low: str, denied: str) -> bool:
    """The answer for a name in lower case. Each text that leaves asks it of every variable of the environment."""
    return low in _listed(denied) or (bool(NAME.search(low)) and not NO_SECRET.search(low))


def _listed(denied: str) -> set[str]:
    return {name.strip().lower() for name in denied.split(",")} - {""}


def learn(value: object, name: str = "") -> None:
    """Take in the secrets of settings: from now on they are starred wherever they are, as those of the environment are.

    Args:
        name: of the setting; a text of another name may have secrets next to names within.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            learn(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for part in value:
            learn(part, name)
    elif isinstance(value, str) and is_secret(name):
        if STRICT.search(name.lower()) or not WORDS_ALONE.fullmatch(value):
            _learnt[value] = None
    elif isinstance(value, str):
        named = [value[start:end].strip("\"'") for start, end, _ in _next_to_names(value)]
        _learnt.update(dict.fromkeys(part for part in named if not WORDS_ALONE.fullmatch(part)))
        _learnt.update(dict.fromkeys(PASSWORD.findall(value)))


def without_password(address: str) -> str:
    """An address with its user and password replaced by stars."""
    return USER.sub(rf"\1{STARS}@", ADDRESS.sub(rf"\1{STARS}@", address))


def without_secrets(text: str) -> str:
    """`text` with stars in place of secrets."""
    held = tuple(value for name, value in os.environ.items() if is_secret(name))
    for written in _forms_of((*held, *_learnt)):
        text = text.replace(written, STARS)
    text = without_password(KEY.sub(STARS, text))
    for form in FORMS:
        text = _put(text, _of_form(text, *form))
    text = _put(text, _next_to_names(text))
    return _put(text, _random(text))


name_without_secrets = lru_cache(4096)(without_secrets)
"""The same for names of tools and environments, which come with each batch: they may be addresses."""


def _put(text: str, places: Iterable[Place]) -> str:
    parts, done = list[str](), 0
    for start, end, stars in places:
        parts += (text[done:start], stars)
        done = end
    return "".join((*parts, text[done:])) if parts else text


def _bytes(text: str) -> bytes:
    """`text` with a byte for each character."""
    return text.encode("latin-1", "replace")


def _all_of(words: Iterable[str], text: str) -> list[int]:
    """Where any of `words`, which are in lower case, begins."""
    low, places = _bytes(text).lower(), list[int]()
    for word in map(_bytes, words):
        at = low.find(word)
        while at >= 0:
            places.append(at)
            at = low.find(word, at + 1)
    return sorted(places)


def _of_form(text: str, beginnings: tuple[str, ...], pattern: re.Pattern[str], stars: str) -> Iterator[Place]:
    done = 0
    for at in _all_of(beginnings, text):
        if at >= done and (match := pattern.match(text, at)):
            done = match.end()
            yield at, done, match.expand(stars)


def _next_to_names(text: str) -> Iterator[Place]:
    """Values next to the names of secrets, unless they are numbers."""
    denied, done = os.environ.get(DENIED, ""), 0
    for at in _all_of({*WORDS, *_listed(denied)}, text):
        if at < done:
            continue
        word = WORD.match(text, at)
        done = word.end() if word else at + 1
        start = at
        while start and at - start <= LONGEST_NAME and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
            start -= 1
        if (match := NAMED.match(text, start)) is None:
            continue
        option, _, name, between, value = match.groups()
        sentence = (between or "").startswith(":") and not STRICT.search(name.lower())
        if not sentence and not NUMBER.fullmatch(value.strip("\"'")) and is_secret(option or name):
            quote = value[0] if value[0] in "\"'" else ""
            done = match.end()
            yield match.start(5), done, f"{quote}{STARS}{quote}"


def _random(text: str) -> Iterator[Place]:
    """Words that look as if they were drawn at random."""
    run = b"a" * 20
    mask = _bytes(text).translate(IN_RANDOM)
    at = mask.find(run)
    while at >= 0:
        if (match := RANDOM.match(text, at)) and _is_random(match[0]):
            yield at, match.end(), STARS
        end = mask.find(b" ", at)
        at = mask.find(run, end) if end >= 0 else -1


@lru_cache(16)
def _forms_of(secrets: tuple[str, ...]) -> list[str]:
    """All of `secrets`, however they are written, the longest first."""
    forms = {form for value in secrets for part in _parts(value) for form in _forms(part)}
    return sorted(forms, key=len, reverse=True)


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


learn(" ".join(sys.argv))
