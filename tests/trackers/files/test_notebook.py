import json

import pytest
from typer.testing import CliRunner

from tracker_diag import diagnose, read_run
from tracker_diag.cli.app import app
from tracker_diag.errors import SourceError

TABLE = """
    <div>
      <progress value='3' max='3' style='width:300px; height:20px; vertical-align: middle;'></progress>
      [3/3 00:37, Epoch 1/1]
    </div>
    <table border="1" class="dataframe">
  <thead>
 <tr style="text-align: left;">{header}</tr>
  </thead>
  <tbody>{body}</tbody>
</table><p>"""


def table(header, rows):
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return TABLE.format(header="".join(f"<th>{name}</th>" for name in header), body=body)


def shown(html):
    return {"output_type": "display_data", "data": {"text/html": html.splitlines(keepends=True), "text/plain": ["<x>"]}}


def printed(text):
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}


def notebook(folder, *cells, name="train.ipynb"):
    """A notebook whose code cells have these outputs."""
    file = folder / name
    code = [{"cell_type": "code", "source": ["x"], "metadata": {}, "outputs": list(outputs)} for outputs in cells]
    markdown = {"cell_type": "markdown", "source": ["# Training"], "metadata": {}}
    file.write_text(json.dumps({"cells": [markdown, *code], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return file


def test_the_table_of_a_trainer(tmp_path):
    header = ["Step", "Training Loss", "Validation Loss", "Mean Score", "rewards / format", "completions / mean_length"]
    rows = [
        [10, "0.500000", "No log", "No log", "0.25", "1,204.5"],
        [20, "0.400000", "0.700000", "0.61", "0.5", "1,100.0"],
        [30, "nan", "0.800000", "0.62", "0.75", "900.0"],
    ]
    file = notebook(tmp_path, [printed("Loading\n"), shown(table(header, rows))])
    run = read_run(file)
    assert list(run.rows) == [10, 20, 30]
    assert run.rows[10] == {"loss": 0.5, "rewards/format": 0.25, "completions/mean_length": 1204.5}
    assert run.rows[20]["eval_loss"] == 0.7
    assert run.rows[20]["eval_mean_score"] == 0.61
    assert diagnose(file).summary.first_break.rule.id == "NUM004"


def test_on_the_command_line(tmp_path):
    rows = [[step, 1.0 / step, 0.01 * step] for step in range(1, 6)]
    file = notebook(tmp_path, [shown(table(["Step", "Training Loss", "reward"], rows))])
    result = CliRunner().invoke(app, ["diagnose", str(file)])
    assert result.exit_code == 0
    assert "too short to judge: 5 rows" in result.stdout
    assert "read from 1 tables in the outputs of the notebook" in " ".join(result.stdout.split())


def test_a_table_that_is_shown_again_counts_once_and_a_second_training_is_a_phase(tmp_path):
    header = ["Step", "Training Loss", "reward"]
    first = [[step, 1.0 / step, 0.01 * step] for step in range(1, 21)]
    second = [[step, 0.5 / step, 0.3 + 0.01 * step] for step in range(1, 21)]
    run = read_run(
        notebook(
            tmp_path, [shown(table(header, first[:9])), shown(table(header, first))], [shown(table(header, second))]
        )
    )
    assert len(run.rows) == 40
    assert run.caveats[0].startswith("the step counter begins again: 2 phases")


def test_a_table_by_epochs(tmp_path):
    run = read_run(notebook(tmp_path, [shown(table(["Epoch", "Training Loss"], [[1, "0.5"], [2, "0.4"]]))]))
    assert run.rows == {1: {"loss": 0.5}, 2: {"loss": 0.4}}


def test_printed_dictionaries(tmp_path):
    lines = "".join(
        f"{{'loss': {0.1 * step}, 'reward': {0.01 * step}, 'epoch': {step / 20}}}\n" for step in range(1, 13)
    )
    run = read_run(notebook(tmp_path, [printed(lines[:200])], [printed(lines)]))
    assert [row["loss"] for row in run.rows.values()][-1] == pytest.approx(1.2)


def test_another_table_with_steps(tmp_path):
    run = read_run(
        notebook(tmp_path, [shown(table(["", "step", "kl"], [[0, 1, 0.1], [1, 2, 0.2], ["...", "...", "..."]]))])
    )
    assert {step: row["kl"] for step, row in run.rows.items()} == {1: 0.1, 2: 0.2}


def test_a_notebook_without_metrics_and_what_is_no_notebook(tmp_path):
    with pytest.raises(SourceError, match=r"no metrics in the outputs of 2 cells: no table with steps"):
        read_run(notebook(tmp_path, [printed("hello\n"), shown(table(["name", "size"], [["a", 1]]))]))
    broken = tmp_path / "broken.ipynb"
    broken.write_text('{"cells": [')
    with pytest.raises(SourceError, match="no notebook"):
        read_run(broken)
    broken.write_text('{"worksheets": []}')
    with pytest.raises(SourceError, match="expected a notebook of version 4"):
        read_run(broken)
