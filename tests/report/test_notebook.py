import html
import math
import subprocess
import sys

import pytest

import tracker_diag as td

ROWS = {step: {"reward": min(step, 60) / 60 if step < 70 else 0.1, "<kl>": 0.1} for step in range(120)}


@pytest.fixture
def diagnosis(tmp_path):
    lines = (f'{{"step": {step}, "reward": {row["reward"]}}}' for step, row in ROWS.items())
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    return td.diagnose(str(tmp_path / "metrics.jsonl"))


@pytest.mark.slow
def test_a_summary_is_its_page_in_a_frame(diagnosis):
    shown = diagnosis._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    page = html.unescape(shown)
    assert "Reward has lost what it had gained" in page
    assert shown.count("<") == 2  # the frame's own, and its end
    assert diagnosis.summary._repr_html_() == shown


@pytest.mark.slow
def test_a_finding_says_what_it_is_and_what_to_do_and_is_escaped():
    monitor = td.Monitor()
    monitor.log({"<script>loss": math.nan}, step=0)
    (finding,) = monitor.close().findings
    shown = finding._repr_html_()
    assert "NaN or infinity</b> (NUM004, error, firing): onset at step 0, detected at step 0" in shown
    assert shown.count("<li>") == len(finding.rule.remedy)
    assert "<script>" not in shown
    assert "&lt;script&gt;loss" in shown


def test_series_are_a_data_frame(diagnosis):
    frame = diagnosis.to_pandas()
    assert frame.index.name == "step"
    assert frame["reward"].tolist() == [row["reward"] for row in ROWS.values()]


@pytest.mark.slow
def test_without_jinja2_a_notebook_shows_the_text():
    code = "import sys, tracker_diag; sys.modules['jinja2'] = None; print(tracker_diag.Monitor().close()._repr_html_())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


@pytest.mark.slow
def test_the_frame_is_as_tall_as_the_page_and_follows_the_theme_of_the_notebook(diagnosis, page, tmp_path):
    (tmp_path / "notebook.html").write_text(
        f"<body style='background: #111'>{diagnosis._repr_html_()}", encoding="utf-8"
    )
    page.goto((tmp_path / "notebook.html").as_uri())
    inner = page.frames[1]
    inner.wait_for_function("frameElement.clientHeight >= document.documentElement.scrollHeight")
    assert inner.evaluate("document.documentElement.style.colorScheme") == "dark"
