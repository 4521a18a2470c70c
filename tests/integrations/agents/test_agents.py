"""Formats of agents whose framework trains nothing itself, verifiers and OpenEnv.

`checks.py` makes them by the frameworks' own code.
"""

from types import SimpleNamespace

import pytest

from tracker_diag.preflight.environment import AsGymnasium

STAND_INS = (
    "openai", "anthropic", "mcp", "fastmcp", "prime_sandboxes", "prime_tunnel", "prime_runs", "gepa", "math_verify",
    "msgpack", "httpx2", "h11", "tenacity",
)  # fmt: skip
"""Clients of models, sandboxes and servers, which no check calls."""


def test_a_client_of_openenv_gives_the_observation_within_its_result():
    result = SimpleNamespace(observation={"seen": 1}, reward=True, done=True)
    played = AsGymnasium(SimpleNamespace(reset=lambda **_: result, step=lambda _: result))
    assert played.reset(seed=1) == ({"seen": 1}, {})
    assert played.step(0) == ({"seen": 1}, 1.0, True, False, {})


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_by_the_frameworks_own_classes(run_checks):
    run_checks("agents", stand_ins=STAND_INS)
