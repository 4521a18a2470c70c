"""A real small training: a policy learns by clipped importance weights which of 8 actions pays in each of 16 contexts.

From step `ill` on its learning rate is 40 times as high, or one of its tools fails. It does what guards decide.
"""

import copy
import hashlib
import time

import torch
from torch.nn import functional

from tracker_diag import Guard, Monitor, Rule
from tracker_diag.testing import CapturingTracker

CONTEXTS, ACTIONS, BATCH, STEPS, ILL = 16, 8, 256, 40, 24


def rule(id="ACM001", title="Weights carry few samples", **changes):
    """ESS of the token weights is low; `changes` make another rule of it."""
    low = {"kind": "threshold", "series": {"stat": "ess"}, "below": 0.8}
    given = {"pairs": ("policy",), "slices": ("text_only",), "signals": {"low": low}, "when": ["low"],
             "keep_firing_steps": 3, "cooldown_steps": 0}  # fmt: skip
    return Rule.model_validate({"id": id, "title": title, "summary": "ESS is {low.value:.2g}"} | given | changes)


def of_metric(id, metric, *, severity=None, link="policy_update", **limit):
    """A metric beyond a limit."""
    signal = {"off": {"kind": "threshold", "series": {"metric": metric}, **limit}}
    about = {"status": "stable", "severity": severity} if severity else {}
    return rule(id, f"{metric} is off", pairs=(), slices=("all",), signals=signal, when=["off"], link=link,
                summary=f"{metric} is {{off.value:.3g}}", **about)  # fmt: skip


def guard(do, **settings):
    return Guard(do=do, **({"act": True} | settings))


def wait_until_read(register):
    """Until the files of all checkpoints have been read."""
    end = time.monotonic() + 60
    while register.table() and register.changed:
        assert time.monotonic() < end
        time.sleep(0.002)


def digest(policy):
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in policy.state_dict().values())).hexdigest()


def call(name, well):
    return [{"name": name, "status": "ok" if well or name != "search" else "error"}]


class Training:
    """One run; what was decided at which step is in `decisions`, of those that decided anything."""

    def __init__(self, folder, guards, *, ill=ILL, rules=None, fails=False, **options):
        self.folder, self.ill, self.fails = folder, ill, fails
        self.seen = CapturingTracker()
        rules = [rule()] if rules is None else rules
        self.monitor = Monitor([self.seen], rules=rules, catalog=False, window=1, guards=guards, **options)
        self.random = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.policy = torch.nn.Linear(CONTEXTS, ACTIONS, bias=False)
        torch.nn.init.zeros_(self.policy.weight)
        self.sampler, self.reference = copy.deepcopy(self.policy), copy.deepcopy(self.policy)
        self.decisions, self.updates, self.lr, self.beta, self.did = {}, [], {}, {}, []
        self.hashes, self.rolled_back, self.weights, self.share = {}, {}, {}, {}

    def run(self, steps=STEPS):
        for step in range(steps):
            if self.step(step) == "training":
                break
        self.monitor.close()
        return self

    def step(self, step):
        """A rollout, what is seen of it, and an update unless a guard says otherwise."""
        weights = torch.ones(CONTEXTS)
        weights[:8] *= self.weights.get("search", self.weights.get("*", 1.0))  # what the first 8 contexts need
        contexts = torch.multinomial(weights, BATCH, replacement=True, generator=self.random)
        inputs = functional.one_hot(contexts, CONTEXTS).float()
        with torch.no_grad():
            old = self.sampler(inputs).log_softmax(1)
            actions = torch.multinomial(old.exp(), 1, generator=self.random)
            new, ref = self.policy(inputs).log_softmax(1), self.reference(inputs).log_softmax(1)
        reward = (actions[:, 0] == contexts % ACTIONS).float()
        taken = old.gather(1, actions)
        self.share[step] = (contexts < 8).float().mean().item()
        if self.fails:
            self.monitor.samples(
                calls=[call("search" if context < 8 else "python", step < self.ill) for context in contexts]
            )
        ones = torch.ones(BATCH, 1).numpy()
        self.monitor.observe(logprobs=new.gather(1, actions).numpy(), old_logprobs=taken.numpy(), model_mask=ones)
        kl = (new.exp() * (new - ref)).sum(1).mean().item()
        self.monitor.log({"reward": reward.mean().item(), "kl": kl}, step)
        decision = self.monitor.decide()
        if decision:
            self.decisions[step] = decision
        self.follow(decision, step)
        self.weights = decision.tool_weights
        if decision.stop or decision.skip_batch:
            return decision.stop
        self.lr[step] = decision.lr_factor * 8.0 * (40 if step >= self.ill and not self.fails else 1)
        self.beta[step] = decision.kl_coef or 0.0
        now = self.policy(inputs).log_softmax(1)
        ratio = (now.gather(1, actions) - taken).exp()[:, 0]
        drift = (now.exp() * (now - ref)).sum(1).mean()
        loss = -(ratio * (reward - reward.mean())).mean() + self.beta[step] * drift
        self.sampler.load_state_dict(self.policy.state_dict())  # one step old at the next rollout
        self.policy.zero_grad()
        loss.backward()
        with torch.no_grad():
            self.policy.weight -= self.lr[step] * self.policy.weight.grad
        self.updates.append(step)
        if step % 8 == 7:
            self.save(step)
        return None

    def follow(self, decision, step):
        """What is done besides the update."""
        if decision.save:
            self.did.append(("save", step))
        if decision.reevaluate:
            self.did.append(("evaluate", step))
        if decision.refresh_reference:
            self.reference.load_state_dict(self.policy.state_dict())
            self.did.append(("reference", step))
        if decision.rollback_to:
            state = torch.load(decision.rollback_to.path + "/policy.pt")
            for item in (self.policy, self.sampler):
                item.load_state_dict(state)
            self.rolled_back[step] = digest(self.policy)
            self.ill = STEPS  # the learning rate is put right

    def save(self, step):
        folder = self.folder / f"step-{step}"
        folder.mkdir(parents=True)
        torch.save(self.policy.state_dict(), folder / "policy.pt")
        self.hashes[step] = digest(self.policy)
        self.monitor.checkpoint(folder, step)
