"""Writes the generated pages: `python docs/generate.py`. A test holds them against what this would write."""

from pathlib import Path

from tracker_diag.metrics.registry import HEALTH, OWN, STATS, TRAINING, Metric

DOCS = Path(__file__).parent


def metrics_page() -> str:
    """docs/metrics.md, from the registry."""
    return "\n".join(
        [
            "# Metrics",
            "",
            "Made from `tracker_diag/metrics/registry.py` by `make docs`; nothing is logged that is not here.",
            "",
            "## Statistics of a slice",
            "",
            "Logged as `diag/<pair>/<slice>/<stat>`, over a window of the last 8 steps. The pairs, trainer first:",
            "`policy` = logprobs − old_logprobs, `mismatch` = old_logprobs − rollout_logprobs, `reference` =",
            "logprobs − ref_logprobs. The slices: `text_only`, model tokens before any tool result of their sequence;",
            "`post_tool`, those after one; `all`. A statistic is logged only where its tokens support it: 200, and for",
            "a quantile q at least 20/(1 − q).",
            "",
            *_table(STATS, "diag/<pair>/<slice>/"),
            "## Health of the diagnostics",
            "",
            "Logged from its first count on; nothing that goes wrong in them raises into training.",
            "",
            *_table(HEALTH, "diag/health/"),
            "## State",
            "",
            *_table(OWN, "diag/"),
            "## Metrics of yours that the rules read",
            "",
            "Recognised by the last part of their name, so `train/reward` is `reward`.",
            "",
            *_table(TRAINING, ""),
        ]
    )


def _table(metrics: tuple[Metric, ...], prefix: str) -> list[str]:
    rows = [f"| `{prefix}{m.name}` | {m.unit} | {m.meaning} | {m.worse} |" for m in metrics]
    rows = [row.replace("|r|", "\\|r\\|") for row in rows]
    return ["| name | unit | meaning | worse |", "|---|---|---|---|", *rows, ""]


PAGES = {"metrics.md": metrics_page}


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())


if __name__ == "__main__":
    main()
