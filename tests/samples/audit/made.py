"""A made data set of 64 groups of 8 samples, and one fault for each thing that an audit finds."""

import numpy as np

GROUPS, EACH = 64, 8
N = GROUPS * EACH
SYLLABLES = ("ta", "ri", "mo", "len", "ka", "su", "pe", "dor", "vi", "nash", "o", "ge", "lu", "xi", "bra", "cho")


def words(rng, n):
    return " ".join(map("".join, rng.choice(SYLLABLES, (n, 3))))


def clean(seed=0):
    """Rewards are right answers and a little style; nothing else is paid."""
    rng = np.random.default_rng(seed)
    prompts = [words(rng, 24) + "?" for _ in range(GROUPS)]
    hard = rng.random(GROUPS)
    samples = []
    for i in range(N):
        group = i // EACH
        right = float(rng.random() > hard[group])
        form = float(rng.random())
        samples.append({
            "prompt": prompts[group], "group": group, "success": right, "verifier": right,
            "components": {"solved": 0.8 * right, "format": 0.1 * form,
                           "safety": None if i % 3 else 0.1 * float(rng.random())},
            "judge": 0.5 * right + 0.3 * float(rng.random()),
            "completion": words(rng, int(rng.integers(40, 80)))
                          + (" The task is complete." if right else " I could not solve it."),
            "length": int(rng.integers(80, 160)),
            "calls": [{"name": "search", "arguments": {"q": int(rng.integers(99))}}
                      for _ in range(int(rng.integers(1, 4)))],
        })  # fmt: skip
        samples[-1]["reward"] = sum(value or 0.0 for value in samples[-1]["components"].values())
    return samples


def evaluation(seed=1):
    rng = np.random.default_rng(seed)
    return [{"question": words(rng, 24) + "?"} for _ in range(50)]


def some(samples, share, seed=2):
    rng = np.random.default_rng(seed)
    return [one for one in samples if rng.random() < share]


def length(samples):
    for one in samples:
        one["reward"] += one["length"] / 100


def repetition(samples):
    for one in some(samples, 0.15):
        one |= {"completion": "go on " * 300, "success": 0.0, "verifier": 0.0, "reward": 1.0}


def many_repeat(samples):
    for one in some(samples, 0.4):
        one["completion"] = "go on " * 300


def refusal(samples):
    for one in some(samples, 0.15):
        one |= {"completion": "I'm sorry, but I can't help with that.", "success": 0.0, "verifier": 0.0, "reward": 0.7}


def format_paid(samples):
    for one in samples:
        one["components"]["format"] *= 12
        one["reward"] = 0.2 * one["success"] + one["components"]["format"]


def pretends(samples):
    for one in samples:
        if not one["success"]:
            one["completion"] = one["completion"].replace("I could not solve it.", "The task is complete.")


def style(samples):
    for one in samples:
        one["judge"] = 0.5 * one["success"] + one["length"] / 200


def marks(samples):
    rng = np.random.default_rng(3)
    for one in samples:
        n = int(rng.integers(0, 20))
        one["completion"] += " **" * n
        one["judge"] = 0.5 * one["success"] + n / 20


def dead(samples):
    for one in samples:
        one["components"]["format"] = 0.1


def calls(samples):
    for one in samples:
        one["reward"] += len(one["calls"])


def wrong_sign(samples):
    for one in samples:
        one["reward"] = -one["reward"]


def proxy(samples):
    rng = np.random.default_rng(4)
    for one in samples:
        one["reward"] = float(rng.random())


FAULTS = {
    "length-inflation": length, "repetition": repetition, "repetition of many": many_repeat, "refusal-drift": refusal,
    "format-hacking": format_paid, "pseudo-success": pretends, "judge-bias": style, "judge-bias by marks": marks,
    "dead-component": dead, "tool-hacking": calls, "reward-sign-confusion": wrong_sign, "uncorrelated-proxy": proxy,
}  # fmt: skip
"""By the name of the finding, and what else of it."""
