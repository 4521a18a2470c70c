"""Rules as automations of W&B's: its own server tells Slack when the state of a rule that we log says firing.

Opt-in, by command; W&B asks for a Pro or Enterprise plan. A rule that is explained by another one, or that is
harmless for now, tells here as well, since the state that is logged is the rule's own. What is sent was held against
W&B's client and its schema; replies of W&B's server, and how often an automation tells, have not been seen.
"""

from collections.abc import Iterable
from typing import Any

from tracker_diag.errors import DiagError, require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.rules.alerts import advice
from tracker_diag.rules.conditions import words
from tracker_diag.rules.engine import STATE_VALUES
from tracker_diag.rules.model import Rule


def export(entity: str, project: str, rules: Iterable[Rule]) -> list[str]:
    """Make an automation in the project for each of `rules`, to the first Slack channel of the team; their names.

    One that is there already, by its name, is left as it is.

    Raises:
        DiagError: no Slack channel is connected, or W&B does not take one; those before it are made.
    """
    wandb: Any = require("wandb", "wandb")
    made: list[str] = []
    try:
        api = wandb.Api()
        place, slack = api.project(project, entity=entity), _slack(api, entity)
        _ = place.id  # asks the server now, and says so if there is none
        for rule in rules:
            name, new = f"tracker-diag {rule.id}", automation(rule, place, slack)
            api.create_automation(new, name=name, description=rule.title, fetch_existing=True)
            made.append(name)
    except DiagError:
        raise
    except Exception as error:  # what the client raises is of no one kind
        raise DiagError(f"wandb:{entity}/{project}: {len(made)} automations made, then: {error}") from error
    return made


def _slack(api: Any, entity: str) -> Any:
    for channel in api.slack_integrations(entity=entity):
        return channel
    raise DiagError(f"wandb:{entity}: no Slack channel is connected, expected one in the team's settings")


def automation(rule: Rule, project: Any, slack: Any) -> Any:
    """What W&B is to do when `rule` fires in a run of `project`; a `wandb.automations.NewAutomation`."""
    automations: Any = require("wandb.automations", "wandb")
    fires = automations.RunEvent.metric(f"{PREFIX}rule/{rule.id}") >= STATE_VALUES["firing"]
    harmless = [f"Harmless while {words(rule.harmless)}."] if rule.harmless else []
    first, more = advice(rule)
    text = " ".join([f"{rule.name} ({rule.link}).", *harmless, *first, *more])
    send = automations.SendNotification.from_integration
    tell = send(slack, title=f"{rule.id}: {rule.title}", text=text, level=rule.severity)
    return automations.OnRunMetric(scope=project, filter=fires) >> tell
