"""Scrub: stars in place of secrets, in all text that we write or send.

Known are the values of environment variables, settings and arguments whose names say so. Others are known by their
form: addresses with a password, headers, assignments, webhooks, private keys, and tokens that look random. Hexadecimal
text, as of run ids, commits and checksums, is no secret by its form.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from html import escape
from string import ascii_letters, digits
from typing import Any, TypeAlias
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
    r"openai|hf|wandb|shared|master|client|auth)[_-]?key|sas"
)
WEAK = r"pass|tokens?|auth|sig|signature"
"""As a word in a sentence they say nothing."""
GLUED = r"(?:password|passwd|passphrase|secret|apikey)"
"""Also in the midst of a word, as in PGPASSWORD."""
NAME = re.compile(rf"{GLUED}|(?<![a-z])(?:{STRONG}|{WEAK})(?![a-z])")
"""In the name of a variable or setting that holds a secret; in lower case."""
STRICT = re.compile(rf"{GLUED}|(?<![a-z])(?:{STRONG})(?![a-z])")
"""Such a name that no sentence has by chance."""
SPACED = re.compile(r"pass[wpc]|pwd")
"""In the name of a secret that may hold spaces."""
NO_SECRET = re.compile(
    r"(?:eos|bos|pad|unk|mask|sep|cls|stop|image|special|eot|end|begin|start|think|max|min|num|new|prompt|response|"
    r"completion|model|tool)[_-]?tokens?(?:_id)?s?$|tokens?_(?:per|count|id|level|mean|sum)"
)
"""Names of settings of tokens of language."""
WORDS_ALONE = re.compile(r"[a-z_ -]*")
"""Values as of a choice, under a name that need not be that of a secret."""
HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
NUMBER = re.compile(r"[+-]?[\d.,_]+(?:e[+-]?\d+)?|true|false|none|null|nan|inf|", re.IGNORECASE)

_QUOTE = r"(?:\\*[\"']|&(?:quot|#x27|#3[49]);)"
_BARE = r"(?:[^\s&;,\"'<>()\[\]{}\\]|\\(?![\"']))"
ADDRESS = re.compile(
    r"(//)(?=[^@]{1,600}@)(?!\d+[/\s])[^\s:/@\"'<>]*:(?!\d+(?:[/\s?#,;\"')]|$))"
    r"(?:[^\s\"'<>]| (?=[^\s\"'<>/]{0,200}@)){0,500}@"
)
PASSWORD = re.compile(r"//[^\s:/@\"'<>]*:([^\s\"'<>/]+)@")
USER = re.compile(r"(//)[^\s:/@\"'<>?#]+@")
KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:hf_|gh[pousr]_|[rs]k_(?:live|test)_|whsec_|A(?:KIA|SIA)|dapi|npm_|r8_|gsk_|shpat_|dop_v1_)"
    r"(?=[a-z]*[A-Z\d])[A-Za-z0-9]{8,}|(?:sk-|github_pat_|glpat-|xox[a-z]-|xapp-|AIza|pypi-|SG\.|ya29\.|eyJ|hv[bs]\.|"
    r"GOCSPX-|pplx-|tvly-|lsv2_|nvapi-)(?=[\w.-]{0,400}[A-Z\d])[\w-]{8,}(?:\.[\w-]+)*)"
)
"""Beginnings of tokens, without and with dashes and points behind them."""
HOOKS = (
    "hooks.slack.com/", "hooks.zapier.com/", "discord.com/api/webhooks/", "discordapp.com/api/webhooks/",
    "webhook.office.com/", "office.com/webhook/", "api.telegram.org/bot", "chat.googleapis.com/v1/spaces/",
    "maker.ifttt.com/trigger/", "ntfy.sh/",
)  # fmt: skip
PATHS = ("/hooks/", "/hook/", "/webhooks/", "/webhook/", "/integration/")
"""As in hooks on a server of one's own."""


_HOOKS, _PATHS = ("|".join(map(re.escape, words)) for words in (HOOKS, PATHS))
FORMS: tuple[tuple[Sequence[str], re.Pattern[str], str], ...] = (
    (HOOKS, re.compile(rf"(?i:({_HOOKS}))[^\s\"'<>]+"), rf"\1{STARS}"),
    (PATHS, re.compile(rf"(?i:({_PATHS}))(?=[^\s/]{{0,200}}\d)[\w-]{{16,}}(?![\w.])[^\s\"'<>]*"), rf"\1{STARS}"),
    ("?&", re.compile(
        r"([?&](?:amp;)?(?:key|code|hmac|sig)=)(?=[^\s&]{0,200}\d)(?=[^\s&]{0,200}[A-Za-z])[^\s&\"'<>#]{6,}"
    ), rf"\1{STARS}"),
    (("-u", "--user", "--proxy-user"), re.compile(
        r"(?<![\w-])(-u|--user|--proxy-user)([\s=]+)(?!\d+:\d+\b)"
        r"(?:\"[^\"\n:]+:[^\"\n]+\"|'[^'\n:]+:[^'\n]+'|[^\s:/\"']+:[^\s\"']+)"
    ), rf"\1\2{STARS}"),
    (("proxy-authorization", "authorization", "set-cookie", "cookie", "x-"), re.compile(
        r"(?<![\w-])((?i:proxy-authorization|authorization|set-cookie|cookie|x-[\w-]{0,40}(?:key|token|secret|auth)))"
        rf"({_QUOTE}?\s*:\s*b?{_QUOTE}?|{_QUOTE}\s*,\s*b?{_QUOTE}(?=[^\"'\n]{{0,1000}}?{_QUOTE}\s*[)\]]))"
        rf"(?:=\s?\\*\"[^\"\n]{{0,1000}}\"|(?![\"']|\\{{1,9}}[\"']|&(?:quot|#x27|#3[49]);)[^\n<>])+"
    ), rf"\1\2{STARS}"),
    (("bearer", "basic", "negotiate"), re.compile(
        r"\b(?i:(bearer|basic|negotiate))(\s+)(?=\S*[\d=_.-])[\w.+/=~-]{6,}"
    ), rf"\1\2{STARS}"),
)  # fmt: skip
"""How each may begin, in lower case, what it is then, and what is put in its place.

The beginnings are what makes it cheap: `find` is a hundred times as fast as an expression that is tried everywhere.
"""
WORDS = (
    "pass", "pwd", "secret", "cred", "auth", "bearer", "cookie", "dsn", "jwt", "pat", "webhook", "notify", "conn",
    "key", "sas", "sig", "token",
)  # fmt: skip
"""One of these is in each name that `NAME` takes."""
NAMED = re.compile((
    r"(?:(?<![\w-])--(?P<option>[\w.-]{1,80})(?:=|\s+)(?!--)|(?<![\w.-])(?P<name>[\w.-]{1,80})(?P<between>"
    r"Q?\s*=\s*|Q\s*:\s*|:\s*|Q?\s{0,40},?\s{0,40}Q?value(?:Q\s{0,9})?[:=]\s*|"
    r"Q\s*,\s*(?=b?Q[^\"'\n]{0,1000}?Q\s*[)\]])|[ \t]+))"
    r"(?P<value>(?P<before>b?(?P<quote>Q))[^\n]{0,1000}?(?<!\\)(?P=quote)|Q(?=\w)[^\n]{1,1000}|"
    r"(?<==)\{[^{}\"'\n]{1,200}\}|BARE{1,1000})"
).replace("Q", _QUOTE).replace("BARE", _BARE))  # fmt: skip
"""A name, what is between, and a value: in quotes, in quotes that do not end, in braces, or bare."""
REST = re.compile(rf"{_BARE}*")
MORE = re.compile(rf"(?:{_BARE}|[ \t,&()\[\]{{}}]{{1,9}}(?=[^\s&;,\"'<>()\[\]{{}}|\\-])(?!\w[\w.-]{{0,80}}\s?[=:]))*")
"""The rest of a bare value with spaces: up to a line's end, a quote, a semicolon, or another name."""
PROSE = re.compile(r"[A-Za-z]?[a-z'-]*\W*")
NETRC = re.compile(r"(?:\bmachine\s+\S+|\bdefault)\s+login\s+\S+\s+\Z")
"""What comes before a password in a file .netrc."""
WORD = re.compile(r"[\w.-]+")
RANDOM = re.compile(r"(?<![\w+/-])(?:[a-z0-9_-]{0,80}/)*([A-Za-z0-9+/_-]{20,120}={0,2})(?![\w+=/-])")
"""Whatever is behind the folders of a path."""
_ALPHABET = (ascii_letters + digits + "+/_-.=").encode()
IN_WORDS = bytes(ord("a") if byte in _ALPHABET else ord(" ") for byte in range(256))
"""Which bytes `TOKEN` and `RANDOM` are made of, for `translate`."""

_learnt: dict[str, None] = {}
"""Secrets of settings and arguments, in their order."""

Place: TypeAlias = tuple[int, int, str]
"""Where something begins and ends, and what is put in its place."""


def _held() -> tuple[str, ...]:
    """The values of variables that hold secrets. `PWD` and the like hold a place that is there, and no secret."""
    denied = os.environ.get(DENIED, "")
    named = (value for name, value in os.environ.items() if _is_secret(name.lower(), denied))
    return tuple(value for value in named if not (value[:1] == "/" and os.path.exists(value)))  # noqa: PTH110  # never raises


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
        for part, called in _settings_in(value, name):
            learn(part, called)
    elif isinstance(value, list | tuple):
        for part in value:
            learn(part, name)
    elif isinstance(value, str) and _is_named(value, name):
        _learnt.update(
            dict.fromkeys(part for part in _parts(value) if part == value or not WORDS_ALONE.fullmatch(part))
        )
    elif isinstance(value, str):
        named = [value[start:end].strip("\"'") for start, end, _ in _next_to_names(value)]
        named = [part for part in named if not WORDS_ALONE.fullmatch(part)] + PASSWORD.findall(value)
        for part in named:  # of a text with spaces, the words may be no secrets
            _learnt.update(dict.fromkeys(_parts(part) if " " not in part else [part] * (len(part) >= SHORTEST)))


def _is_named(value: str, name: str) -> bool:
    """Whether `value` is a secret by the setting's name; it may be a choice or a number where the name is vague."""
    choice = WORDS_ALONE.fullmatch(value) or (len(value) < SHORTEST and NUMBER.fullmatch(value))
    return is_secret(name) and bool(STRICT.search(name.lower()) or not choice)


def _settings_in(value: Mapping[Any, object], name: str) -> Iterator[tuple[object, str]]:
    """Each part of `value` with its name, which may be another part: `{"name": "API_KEY", "value": ...}`."""
    own = value.get("name") or value.get("key")
    for key, part in value.items():
        yield part, own if key == "value" and isinstance(own, str) else f"{name}.{key}"


def learnt(value: Any, name: str = "") -> Any:
    """Settings with stars in place of secrets, which are taken in as by `learn`."""
    learn(value, name)
    if isinstance(value, Mapping):
        return {key: learnt(*part) for key, part in zip(value, _settings_in(value, name), strict=True)}
    if isinstance(value, list | tuple):
        return [learnt(part, name) for part in value]
    text = "" if value is None or isinstance(value, bool | int | float) else str(value)
    clean = STARS if text and _is_named(text, name) else without_secrets(text)
    return value if clean == text else clean


def without_password(address: str) -> str:
    """An address with its user and password replaced by stars."""
    return USER.sub(rf"\1{STARS}@", ADDRESS.sub(rf"\1{STARS}@", address))


def without_secrets(text: str) -> str:
    """`text` with stars in place of secrets."""
    for written in _forms_of(_held(), tuple(_learnt)):
        text = text.replace(written, STARS)
    text = without_password(KEY.sub(STARS, text))
    for form in FORMS:
        text = _put(text, _of_form(text, *form))
    text = _put(text, _next_to_names(text))
    text = _put(text, ((match.start(), match.end(), STARS) for match in _long_words(text, 11, TOKEN)))
    random = (match for match in _long_words(text, 20, RANDOM) if _is_random(match[1]))
    return _put(text, ((match.start(1), match.end(), STARS) for match in random))


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


def _all_of(words: Sequence[str], text: str) -> list[int]:
    """Where any of `words`, which are in lower case, begins."""
    low, places = _bytes(text).lower(), list[int]()
    for word in map(_bytes, words):
        at = low.find(word)
        while at >= 0:
            places.append(at)
            at = low.find(word, at + 1)
    return sorted(places)


def _of_form(text: str, beginnings: Sequence[str], pattern: re.Pattern[str], stars: str) -> Iterator[Place]:
    done = 0
    for at in _all_of(beginnings, text):
        if at >= done and (match := pattern.match(text, at)):
            done = match.end()
            yield at, done, match.expand(stars)


def _next_to_names(text: str) -> Iterator[Place]:
    """Values next to the names of secrets, unless they are numbers."""
    denied, done = os.environ.get(DENIED, ""), 0
    for at in _all_of((*WORDS, *sorted(_listed(denied))), text):
        if at < done:
            continue
        word = WORD.match(text, at)
        done = word.end() if word else at + 1
        start = at
        while start and at - start <= LONGEST_NAME and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
            start -= 1
        word = WORD.match(text, start)
        match = NAMED.match(text, start) if word and _is_secret(word[0].lstrip("-").lower(), denied) else None
        if match and _holds(match):
            done = _end(match)
            yield match.start("value"), done, f"{match['before'] or ''}{STARS}{match['quote'] or ''}"


def _holds(match: re.Match[str]) -> bool:
    """Whether what is next to the name of a secret is one, and no number or sentence."""
    name, between, value = (match["name"] or "").lower(), match["between"] or "=", match["value"].strip("\\\"'")
    before = match.string[max(0, match.start() - 200) : match.start()]
    if NUMBER.fullmatch(value):
        return False
    if not between.strip():
        prose = PROSE.fullmatch(value) and not NETRC.search(before)
        return name.endswith(("password", "passwd", "passphrase")) and not prose
    if "," in between and "value" not in between.lower():
        pair = re.search(rf"[(\[]b?{_QUOTE}\Z", before) and not re.fullmatch(WEAK, name)
        return bool(pair and (STRICT.search(name) or not WORDS_ALONE.fullmatch(value)))
    if re.search("[=\"'&,\\n]", between) or STRICT.search(name):
        return True
    return bool(re.search(r"[_-](?:token|auth|pass|sig)$", name) and len(value) >= SHORTEST and re.search(r"\d", value))


def _end(match: re.Match[str]) -> int:
    """Where the value ends."""
    spaced = match["name"] and (match["between"] or "").strip() and SPACED.search(match["name"].lower())
    bare = not match["quote"] and match["value"][0] not in "\\\"'{"
    return next((MORE if spaced else REST).finditer(match.string, match.end())).end() if bare else match.end()


def _long_words(text: str, length: int, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """What `pattern` finds in words of at least so many characters."""
    run, mask = b"a" * length, _bytes(text).translate(IN_WORDS)
    at = mask.find(run)
    while at >= 0:
        end = mask.find(b" ", at) % (len(mask) + 1)
        yield from pattern.finditer(text, at, end)
        at = mask.find(run, end)


@lru_cache(16)
def _forms_of(held: tuple[str, ...], others: tuple[str, ...]) -> list[str]:
    """All secrets that are known, however they are written, the longest first."""
    parts = {part for value in held for part in _parts(value)}
    return sorted({form for part in (*parts, *others) for form in _forms(part)}, key=len, reverse=True)


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
    """Whether `text` has capitals, small letters and figures in so many turns, and so few words, as no name has."""
    if not all(re.search(kind, text) for kind in ("[0-9]", "[a-z]", "[A-Z]")):
        return False
    parts = [part for part in re.split(r"[-_+/=]", text) if len(part) >= SHORTEST and not HEX.fullmatch(part)]
    length = sum(map(len, parts))
    turns = sum(len(re.findall("[a-z]+|[A-Z]+|[0-9]+", part)) - 1 for part in parts)
    words = sum(len(word) for part in parts for word in re.findall("[a-z]{3,}", part))
    return length >= 2 * SHORTEST and turns >= 0.3 * length and words <= 0.45 * length


learn(" ".join(sys.argv))
