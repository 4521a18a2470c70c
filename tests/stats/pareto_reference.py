"""Makes pareto_reference.json: the k̂ that arviz-stats gives, for test_pareto.py.

pip install arviz-stats==0.8.0
python tests/stats/pareto_reference.py
"""

import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".json")
SIZES = (512, 4096, 65536, 1_000_000)
NAMES = ("normal", "mixture", "laplace 0.3", "laplace 0.7", "exponential", "wide normal", "mostly below")


def draws(name, n):
    """`n` log-weights, float32 as a trainer would give them, in float64."""
    rng = np.random.default_rng(n)
    drawn = {
        "normal": lambda: rng.normal(0, 0.05, n),
        "mixture": lambda: np.where(rng.random(n) < 0.95, rng.normal(0, 0.05, n), 0.1 * rng.standard_t(2, n)),
        "laplace 0.3": lambda: rng.laplace(0, 0.3, n),
        "laplace 0.7": lambda: rng.laplace(0, 0.7, n),
        "exponential": lambda: rng.exponential(1.0, n),
        "wide normal": lambda: rng.normal(0, 1.5, n),
        "mostly below": lambda: -rng.exponential(1.0, n),
    }[name]()
    return drawn.astype(np.float32).astype(float)


if __name__ == "__main__":
    from arviz_stats.base import array_stats

    # It takes log-likelihoods and turns their sign.
    shapes = {f"{name}, {n}": float(array_stats.psislw(-draws(name, n))[1]) for name in NAMES for n in SIZES}
    FILE.write_text(json.dumps(shapes, indent=1) + "\n")
