"""Against real event files, read back with TensorBoard's own reader."""

import html
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from tracker_diag.records import Histogram, Scalar, Table
from tracker_diag.report.markdown import findings_text, markdown
from tracker_diag.trackers.tensorboard.write import TensorBoardTracker

pytestmark = pytest.mark.slow


def events_in(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    return reader.Reload()


def torch_writer(folder):
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def test_a_tensorboard_without_its_data_server_continues_showing_your_curves(tmp_path, rng, make_batch):
    """Its Python reader follows the latest file of a folder alone, so ours must not be next to yours."""
    writer, reader = torch_writer(tmp_path), None
    began = int(time.time())
    while int(time.time()) == began:  # names of event files go by the second
        time.sleep(0.01)
    tracker = TensorBoardTracker(tmp_path)
    for step in range(6):
        writer.add_scalar("reward", step, step)
        writer.flush()
        tracker.write(step, [Scalar("diag/policy/all/p95", 1.0)], time.time())
        tracker.flush()
        reader = reader.Reload() if reader else events_in(tmp_path)
    assert [value.step for value in reader.Scalars("reward")] == list(range(6))
    writer.close()


def test_after_a_resume_what_was_written_of_later_steps_is_left_out(tmp_path):
    for steps, value in ((range(10), 1.0), (range(6, 12), 2.0)):
        tracker = TensorBoardTracker(tmp_path)
        for step in steps:
            tracker.write(step, [Scalar("diag/policy/all/p95", value)], float(step))
        tracker.flush()
    scalars = events_in(tmp_path / "diag").Scalars("diag/policy/all/p95")
    assert [(item.step, item.value) for item in scalars] == [(i, 1.0 if i < 6 else 2.0) for i in range(12)]


def test_nobody_else_may_read_our_files_and_yours_stay_as_they_are(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "events.out.tfevents.1.mine").touch(0o644)
    tracker = TensorBoardTracker(tmp_path)
    tracker.write(0, [Scalar("diag/policy/post_tool/p95", 1.0)], 0.0)
    tracker.flush()
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in (tmp_path / "diag").rglob("*")}
    assert modes == {True: 0o700, False: 0o600}
    assert [path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "events.out.tfevents.1.mine")] == [
        0o755,
        0o644,
    ]


def test_folders_above_ours_are_made_as_you_would_make_them(tmp_path):
    tracker = TensorBoardTracker(tmp_path / "runs" / "one")
    tracker.write(0, [Scalar("diag/policy/post_tool/p95", 1.0)], 0.0)
    tracker.flush()
    modes = [(tmp_path / path).stat().st_mode & 0o777 for path in ("runs", "runs/one", "runs/one/diag")]
    assert modes == [0o755, 0o755, 0o700]


def test_what_could_not_be_written_is_kept_and_comes_later(tmp_path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.write(0, [Scalar("diag/policy/all/p95", 0.0)], 100.0)
    assert tracker.flush()
    shutil.move(tmp_path / "diag", tmp_path / "moved")
    (tmp_path / "diag").write_text("in the way")
    for step in (1, 2):
        tracker.write(step, [Scalar("diag/policy/all/p95", float(step))], 100.0 + step)
        with pytest.raises(OSError):  # noqa: PT011  # which one is the file system's affair
            tracker.flush()
    (tmp_path / "diag").unlink()
    assert tracker.flush()
    scalars = events_in(tmp_path / "diag").Scalars("diag/policy/all/p95")
    assert [(item.wall_time, item.step, item.value) for item in scalars] == [(101.0, 1, 1.0), (102.0, 2, 2.0)]


def test_a_folder_that_cannot_be_written_to_is_reported_at_set_up(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        TensorBoardTracker(tmp_path / "file")


def test_counts_go_over_as_they_are(tmp_path):
    edges = np.array([0.0, 0.5, 1.0, 4.0])
    tracker = TensorBoardTracker(tmp_path)
    for step, counts in enumerate(([0, 3, 1], [0, 0, 0])):
        record = Histogram("diag/policy/all/hist", "policy", "all", np.array(counts), edges, np.zeros(3, int))
        tracker.write(step, [record], 0.0)
    tracker.flush()
    full, empty = (
        histogram.histogram_value for histogram in events_in(tmp_path / "diag").Histograms("diag/policy/all/hist")
    )
    assert (full.min, full.max, full.num, full.sum) == (0.5, 4.0, 4, 3 * 0.75 + 2.5)
    assert full.sum_squares == 3 * 0.75**2 + 2.5**2
    assert (full.bucket_limit, full.bucket) == ([0.5, 1.0, 4.0], [0, 3, 1])
    assert (empty.min, empty.max, empty.num, sum(empty.bucket)) == (0, 0, 0, 0)


NASTY = "a|b *c* _d_ `e` <script>f()</script> [g](http://h) \\ \\| &amp; # ! 1. - + {i} ~~j~~\n> k <b>"


def test_whatever_stands_in_a_cell_is_shown_as_it_is():
    from tensorboard.plugin_util import markdown_to_safe_html

    shown = markdown_to_safe_html(markdown(Table("diag/events", ("step", "event"), ((1, NASTY), (None, 0.123456)))))
    cells = [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", shown, re.DOTALL)]
    assert cells == ["1", " ".join(NASTY.split()), "", "0.123"]

    columns = (
        "onset",
        "fired",
        "resolved",
        "rule",
        "name",
        "slice",
        "severity",
        "state",
        "summary",
        "evidence",
        "remedy",
    )
    row = (1, 2, None, "X1", "_x_", "tool:<i>", "warn", "firing", NASTY, NASTY, NASTY)
    shown = markdown_to_safe_html(findings_text(Table("diag/findings", columns, (row,))))
    assert set(re.findall(r"<(\w+)", shown)) == {"h4", "p", "strong", "em"}
    assert html.unescape(shown).count(" ".join(NASTY.split())) == 3
    assert "(steps: onset 1, fired 2)" in shown


def test_two_folders_of_one_name_have_two_addresses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    item, two = TensorBoardTracker("a/logs").address, TensorBoardTracker(tmp_path / "b/logs").address
    assert item["folder"] == str(tmp_path / "a/logs")
    assert item["run"] != two["run"]
    assert TensorBoardTracker(item["folder"]).address == item


@pytest.mark.nightly
def test_neither_torch_nor_tensorflow_is_imported(tmp_path):
    program = (
        "import sys\n"
        "from tracker_diag.trackers.tensorboard.write import TensorBoardTracker\n"
        "from tracker_diag.records import Scalar\n"
        f"tracker = TensorBoardTracker({str(tmp_path)!r})\n"
        "tracker.write(0, [Scalar('diag/policy/text_only/p95', 1.0)], 0.0)\n"
        "tracker.flush()\n"
        "print({'torch', 'tensorflow'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["set()"]
    assert events_in(tmp_path / "diag").Scalars("diag/policy/text_only/p95")
