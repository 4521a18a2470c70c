"""Secrets of every form in every place are starred, and what is none stays as it is."""

import json
import logging
import random
import re
import string
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from tracker_diag import Monitor, preflight, scrub
from tracker_diag.rules.loader import catalog
from tracker_diag.runs.postmortem.live import leave_one
from tracker_diag.scrub import without_secrets
from tracker_diag.testing import CapturingTracker, example_batch
from tracker_diag.trackers.files.write import JsonlTracker, unused_folder
from tracker_diag.trackers.tracker import File

NAMES = (
    "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY", "HF_TOKEN", "SLACK_WEBHOOK_URL", "PGPASSWORD",
    "AZURE_STORAGE_CONNECTION_STRING", "SMTP_PASS", "OPENAI_KEY", "GH_AUTH", "AWS_SECRET_ACCESS_KEY", "SENTRY_DSN",
    "DB_PASSWD", "MY_JWT", "NEPTUNE_PASSPHRASE", "SESSION_COOKIE", "GITHUB_PAT", "TRACKER_DIAG_NOTIFY", "db_pwd",
    "service-account-key",
)  # fmt: skip
SHAPES = (
    lambda text: text,
    lambda text: f"{text[:5]} {text[5:]}",
    lambda text: f"{text[:3]}@{text[3:7]}#{text[7:]}!",
    lambda text: f"sk-{text}",
    lambda text: f"{text}==",
)
CORPUS = [
    (name, shape("".join(random.Random(f"{name}{i}").choices(string.ascii_letters + string.digits, k=12))))
    for name in NAMES
    for i, shape in enumerate(SHAPES)
]
"""100 secrets, each with the name of the variable that holds it."""

PLACES = (
    "RuntimeError: call failed with {}", "{}", "https://user:{}@host/path", "https://{}@host/path", "{name}={}",
    '{{"{name}": "{}"}}', "{{'{name}': '{}'}}", "Authorization: Bearer {}", "--{name} {}", "url=https://host/?token={}&x=1",
    "Proxy-Authorization: Basic {}", "Cookie: session={}; a=b", "password: {}",
    '  File "train.py", line 3\nValueError: {}',
    "AccountName=x;AccountKey={};EndpointSuffix=y", "jdbc:postgresql://h?user=u&password={}",
    "https://hooks.slack.com/services/T0/B0/{}", "<p>{}</p>", "| {} |", "-----BEGIN RSA PRIVATE KEY-----\n{}",
)  # fmt: skip


AS_IT_IS = (
    '{name}="{}"', "export {name}='{}'", "Settings({name}='{}', lr=1)", '{{"{name}": "{}"}}', "{{'{name}': b'{}'}}",
    r'"{{\"{name}\": \"{}\"}}"', "{{&quot;{name}&quot;: &quot;{}&quot;}}", "[('{name}', '{}')]", "(b'{name}', b'{}')",
    '{{"name": "{name}", "value": "{}"}}', "- name: {name}\n  value: '{}'", "- {{key: {name}, value: '{}'}}",
    "Authorization: Bearer {}", 'Authorization: Digest username="m", response="{}"', "Proxy-Authorization: Basic {}",
    "Cookie: session={}; a=b", "('Authorization', 'Bearer {}')", "('X-Api-Key', '{}')", "{{'X-Vault-Token': b'{}'}}",
    'curl -H "X-Auth-Token: {}" https://host', "curl -u 'admin:{}' https://host", '{name}="{} that was cut off',
    "password: {}\nuser: x", "password={}, user=x", "UID=sa;PWD={};x=1", "UID=sa;PWD={{{}}};x=1", "--{name} '{}'",
    "-----BEGIN PRIVATE KEY-----\n{}",
)  # fmt: skip
"""Places that say of a text that it is a secret."""
ENCODED = (
    "https://user:{}@host/path", "redis://:{}@cache:6379/0", "https://{}@host/path", "mongodb+srv://app:{}@h/?w=1",
    "https://host/?token={}&x=1", "https://host/?api-key={}", "https://host/c?sv=2022&sig={}&se=3", "/c?code=a1{}",
    "SharedAccessSignature sr=x&amp;sig={}&amp;se=1", "jdbc:postgresql://h?user=u&password={}", "{name}={} lr=1",
    "AccountName=x;AccountKey={};EndpointSuffix=y", "machine h login u password {}", "curl --user admin:{} https://h",
    "https://hooks.slack.com/services/T0/B0/{}", "https://hooks.zapier.com/hooks/catch/1/{}", "https://ntfy.sh/{}",
    "https://chat.example.com/hooks/xg7k3mfz9bdpfr1w{}", "https://host/integration/0123456789abcdef{}/enqueue",
    "--{name}={}", "--{name} {} --lr 1",
)  # fmt: skip
"""Such places where no text has spaces: it is quoted as in an address."""


def left_of(secret: str, place: str, name: str) -> list[tuple[str, str]]:
    filled = place.replace("{{", "\0").replace("}}", "\1").replace("{name}", name).replace("{}", secret)
    text = without_secrets(filled.replace("\0", "{").replace("\1", "}"))
    return [(text, secret)] if secret in text or secret[5:] in text else []


def test_of_100_secrets_in_20_places_none_is_left(monkeypatch):
    assert (len(CORPUS), len(PLACES)) == (100, 20)
    left = []
    for name, secret in CORPUS:
        with monkeypatch.context() as patch:
            patch.setenv(re.sub("-", "_", name), secret)
            left += [rest for place in PLACES for rest in left_of(secret, place, name)]
    assert left == []


def test_100_secrets_that_no_variable_holds_are_known_by_their_place(monkeypatch):
    monkeypatch.setattr(scrub, "_learnt", {})  # those of settings in other tests
    given = [(place, name, secret) for place in AS_IT_IS for name, secret in CORPUS]
    given += [(place, name, quote(secret, safe="")) for place in ENCODED for name, secret in CORPUS]
    assert [rest for place, name, secret in given for rest in left_of(secret, place, name)] == []


def test_secrets_of_settings_are_known_in_whatever_a_run_leaves(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path / "new" / "folder"))
    config = {f"part{number}.{name}": secret for number, (name, secret) in enumerate(CORPUS)}
    config |= {
        "listed": [{"api_key": "in-A-List-1"}],
        "auth": ("in-A-Tuple-1",),
        "argv": "--hf_token=in-Arguments-1 --pass_by accuracy",
    }
    config |= {"uri": "postgresql://me:in-An-Address-1@host/db", "pass_criterion": "accuracy"}
    monkeypatch.setenv("APP_TOKEN", "inTheEnvironment")
    config |= {"env": [{"name": "API_KEY", "value": "in-A-Pair-1"}], "reward_weights": "of inTheEnvironment"}
    secrets = [secret for _, secret in CORPUS]
    secrets += [f"in-{place}-1" for place in ("A-List", "A-Tuple", "Arguments", "An-Address", "A-Pair")]
    secrets += ["inTheEnvironment"]
    address = "https://in-An-Address-1@host:5000/env"
    leaves = f"accuracy; {'; '.join(secrets)}"
    with suppress(RuntimeError), Monitor([JsonlTracker(unused_folder())], config=config, texts=True) as monitor:
        leave_one(monitor)
        for step in range(3):
            monitor.samples(reward=[1.0], text=[leaves], env=[address], calls=[[{"name": address}]])
            monitor.observe(**example_batch(step) | {"env": np.full(64, address)})
            monitor.rebaseline(leaves)
            with monitor.guard("internal_errors"):
                raise ValueError(leaves)
            monitor.log({"loss": 0.5}, step)
        (tmp_path / "state").touch(0o600)
        (tmp_path / "state").write_text(json.dumps(monitor.state_dict()))
        raise RuntimeError(leaves)
    logging.getLogger("tracker_diag").warning("it said %s", leaves)
    left = [place for place in tmp_path.rglob("*") if place != tmp_path]
    assert len(left) > 8
    texts = {place.name: place.read_text() for place in left if place.is_file()}
    texts |= {"terminal": "".join(capfd.readouterr()), "log": caplog.text}
    assert [(name, secret) for name, text in texts.items() for secret in secrets if secret in text] == []
    assert any("accuracy" in text for text in texts.values())
    assert {place.name for place in left if place.stat().st_mode & 0o077} == set()


@pytest.mark.parametrize("secret", [
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "hf_abcDEFghiJKLmno12", "sk-proj-Abc123def456", "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "xoxb-2403-abcDEF", "q7Rt2Xk9Lm4Zp8Wv3Ny6", "Basic dTpFUlJC1234=",
    "sk_live_51Hx9QdEyJf8aZ3Lm0", "rk_live_51Hx9QdEyJf8aZ3Lm0", "hvs.CAESIJ1aB2cD3eF4gH5iJ6kL", "GOCSPX-aB3dE5fG7hI9",
    "xapp-1-A02BCD-345-abcdef0123", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "q7Rt2Xk9_Lm4Zp8-Wv3Ny6Qe1Tb5",
    "https://host/cb/q7Rt2Xk9Lm4Zp8Wv3Ny6",
])  # fmt: skip
def test_tokens_are_known_by_their_form(secret):
    text = without_secrets(f"it said {secret} and no more")
    assert "***" in text
    assert secret[-8:] not in text


def test_what_is_no_secret_stays_as_it_is(monkeypatch):
    monkeypatch.delenv("TRACKER_DIAG_NOTIFY", raising=False)
    for text in (
        "commit 5ec57f84c680d3a3778b5ec57f84c680d3a3778b", "run 0d8dd8cd5bda4a1e9692f93994c190b9", "max_tokens=512",
        "sha256 " + "9f86d081884c7d65" * 4, "eos_token='</s>'", "tokens_per_second: 120.5", "step 12: pass rate 0.5",
        "http://127.0.0.1:5000/#/experiments/0/runs/abc", "mlflow:abc@http://host:5000", "sqlite:////tmp/x/m.db",
        "diag/policy/post_tool/p95", "Qwen2.5-7B-Instruct-GRPO-lr1e-6", "basic statistics of the bearer",
        "step=3; reward=0.5",
        "/home/me/checkpoints/global_step_100/actor", "token 3 of tool:search, after a tool", "the author=me",
        "Qwen3-4B-A3B-GRPO-lr1e-6-b4x8", "models/Qwen2ForCausalLMWithValueHead", "the password was wrong",
        "hub/models--Qwen--Qwen2/snapshots/a09a35458c702b33eeacc393d103063234e8bc28", "docker run -u 1000:1000 image",
        "https://host/?key=loss&code=404", "src/hooks/use_training_state.py", "auth: none", "password reset for me",
        '  File "/opt/Python3.12/lib/site-packages/transformers/models/Qwen2ForCausalLM.py", line 3, in forward',
        "KeyError: 'reward'", "hf_transfer is not installed", "sk-learn has no estimator", "input_tokens: 12.3k of 16k",
    ):  # fmt: skip
        assert without_secrets(text) == text
    for rule in catalog():
        text = "\n".join([rule.title, rule.summary, *map(str, rule.model_dump().values())])
        assert without_secrets(text) == text, rule.id


@pytest.mark.slow
@pytest.mark.parametrize("piece", [
    "//a:", "//a:@", "x-", "cookie:", "eyJaaaaaaa-", "pass", "token ", "--token ", "key='", "bearer a", "a=", "sk-",
    "A1b", "password: a ", "password=(", "('password', '", 'pwd="a\\"',
    "/hooks/a", "-u a:", "machine a login b password c ", "API_KEY\n", "&quot;token&quot;: ", "a1/B2-", "?key=",
    "sk-aaaaaaaa", "authorization: x" + "\\" * 9999, "secret" + " " * 9999, "-----BEGIN PRIVATE KEY-----", "basic\t",
    "the reward of step 3.5 was level, ", '{"loss": 0.5}, ',
])  # fmt: skip
def test_no_text_costs_more_than_its_length(piece):
    """A quarter of a megabyte, in the training thread."""
    text = piece * ((1 << 18) // len(piece))
    before = time.process_time()
    without_secrets(text)
    assert time.process_time() - before < 1.5


def test_pages_of_rules_are_no_secrets():
    for page in sorted((Path(__file__).parents[1] / "docs" / "rules").glob("*.md"))[::10]:
        assert without_secrets(page.read_text()) == page.read_text(), page


def test_a_user_names_further_secrets_and_has_the_last_word_on_what_is_sent(monkeypatch):
    monkeypatch.setenv("TRACKER_DIAG_SECRETS", "ROOM, other")
    monkeypatch.setenv("ROOM", "cellar-door")
    seen, asked = CapturingTracker(), []

    def before_send(entry):
        asked.append(type(entry).__name__)
        return None if getattr(entry, "text", "").startswith("new baseline: keep") else entry

    monitor = Monitor([seen], before_send=before_send)
    for step, reason in enumerate(("moved to cellar-door", "keep this here")):
        monitor.rebaseline(reason)
        monitor.log({"loss": 0.5}, step)
    monitor.close()
    assert seen.events == [(0, "new baseline: moved to ***")]
    assert {"Metrics", "Event", "End"} <= set(asked)


def test_preflight_and_the_files_of_a_run_are_scrubbed_and_pass_before_send():
    seen, asked = CapturingTracker(), []

    def before_send(entry):
        asked.append(getattr(entry, "name", type(entry).__name__))
        return None if isinstance(entry, File) else entry

    def tool(_):
        raise RuntimeError("cannot reach https://me:passw0rd99@db.example/x")

    monitor = Monitor([seen], before_send=before_send)
    leave_one(monitor)
    preflight(run=monitor, tool=tool, tool_arguments=[1])
    for step in range(30):
        monitor.log({"loss": 0.5}, step)
    monitor.close()
    assert "passw0rd99" not in str(seen.tables)
    assert {"diag/preflight", "Event", "context.json"} <= set(asked)
    assert seen.files == {}


def test_what_before_send_breaks_on_is_not_sent():
    seen = CapturingTracker()
    monitor = Monitor([seen], before_send=lambda _: 1 / 0)
    monitor.log({"loss": 0.5}, 0)
    monitor.close()
    assert seen.own == {}
    assert monitor.health["tracker_errors"] > 0


def test_the_current_folder_is_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("MY_SECRET", "/a/secret/that-begins-as-a-path9")
    assert without_secrets(f"File {tmp_path}/train.py") == f"File {tmp_path}/train.py"
    assert "path9" not in without_secrets("it is /a/secret/that-begins-as-a-path9.")


def test_words_of_a_setting_that_is_called_as_a_secret_are_no_secrets(monkeypatch):
    monkeypatch.setattr(scrub, "_learnt", {})
    scrub.learn({"signature": "question -> answering", "notify": "checkpoint and collapse"})
    for text in ("diag/policy/tool:question_bank/k1", "the checkpoint of step 3"):
        assert without_secrets(text) == text
