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
    return [sample for sample in samples if rng.random() < share]


def length(samples):
    for sample in samples:
        sample["reward"] += sample["length"] / 100


def repetition(samples):
    for item in some(samples, 0.15):
        item |= {"completion": "go on " * 300, "success": 0.0, "verifier": 0.0, "reward": 1.0}


def many_repeat(samples):
    for item in some(samples, 0.4):
        item["completion"] = "go on " * 300


def refusal(samples):
    for item in some(samples, 0.15):
        item |= {"completion": "I'm sorry, but I can't help with that.", "success": 0.0, "verifier": 0.0, "reward": 0.7}


def format_paid(samples):
    for sample in samples:
        sample["components"]["format"] *= 12
        sample["reward"] = 0.2 * sample["success"] + sample["components"]["format"]


def pretends(samples):
    for sample in samples:
        if not sample["success"]:
            sample["completion"] = sample["completion"].replace("I could not solve it.", "The task is complete.")


def style(samples):
    for sample in samples:
        sample["judge"] = 0.5 * sample["success"] + sample["length"] / 200


def marks(samples):
    rng = np.random.default_rng(3)
    for sample in samples:
        n = int(rng.integers(0, 20))
        sample["completion"] += " **" * n
        sample["judge"] = 0.5 * sample["success"] + n / 20


def dead(samples):
    for sample in samples:
        sample["components"]["format"] = 0.1


def calls(samples):
    for sample in samples:
        sample["reward"] += len(sample["calls"])


def wrong_sign(samples):
    for sample in samples:
        sample["reward"] = -sample["reward"]


def proxy(samples):
    rng = np.random.default_rng(4)
    for sample in samples:
        sample["reward"] = float(rng.random())


FAULTS = {
    "length-inflation": length, "repetition": repetition, "repetition of many": many_repeat, "refusal-drift": refusal,
    "format-hacking": format_paid, "pseudo-success": pretends, "judge-bias": style, "judge-bias by marks": marks,
    "dead-component": dead, "tool-hacking": calls, "reward-sign-confusion": wrong_sign, "uncorrelated-proxy": proxy,
}  # fmt: skip
"""By the name of the finding, and what else of it."""
