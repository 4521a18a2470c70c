import pytest

from tracker_diag import UnknownName
from tracker_diag.metrics import registry


def test_names_stand_once_and_are_explained():
    for family in (registry.STATS, registry.HEALTH, registry.TRAINING, registry.OWN):
        names = [metric.name for metric in family]
        assert len(names) == len(set(names))
        assert all(metric.meaning and metric.unit for metric in family)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("reward", "reward"),
        ("train/reward", "reward"),
        ("losses/clip_fraction", "clip_fraction"),
        ("eval/reward", None),
        ("diag/policy/all/kl", None),
        ("reward_spread", None),
        ("my reward", None),
    ],
)
def test_a_trainers_key_is_known_by_its_last_part(key, name):
    assert registry.canonical(key) == name


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UnknownName, match="stat: 'p96' given, expected one of p50, p95, p99"):
        registry.stat("p96")
    with pytest.raises(UnknownName, match="metric: 'rewards' given, expected one of reward, kl"):
        registry.training("rewards")
