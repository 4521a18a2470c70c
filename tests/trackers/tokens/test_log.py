"""Every kind of source, written by its own library, gives the tokens of the plain table."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tracker_diag.errors import SourceError
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.trackers.tokens import plan
from tracker_diag.trackers.tokens.log import TokenLog, read_tokens

STEPS, SEQUENCES, WIDTH = (0, 1, 2, 10, 11), 6, 8
TOOLS = ["", "search", "code"]


@pytest.fixture
def table():
    """Tokens of five steps; the tool's name, the environment and the prompt are texts."""
    rng = np.random.default_rng(0)
    n = len(STEPS) * SEQUENCES * WIDTH
    sequence = np.tile(np.repeat(np.arange(SEQUENCES), WIDTH), len(STEPS))
    position = np.tile(np.arange(WIDTH), len(STEPS) * SEQUENCES)
    new = -rng.random(n).astype(np.float32)
    return pa.table(
        {
            "step": np.repeat(STEPS, SEQUENCES * WIDTH),
            "sequence": sequence,
            "position": position,
            "is_model": (position > 1) & (position != 4),
            "logprob": new,
            "old_logprob": new - rng.normal(0, 0.1, n).astype(np.float32),
            "tool": [TOOLS[0 if p < 5 else 1 + s % 2] for s, p in zip(sequence, position, strict=True)],
            "env": [f"env{s % 2}" for s in sequence],
            "prompt": sequence // 2,
        }
    )


def nested(table):
    """The same with a row for each sequence."""
    rows = {}
    for row in table.to_pylist():
        rows.setdefault((row["step"], row["sequence"]), []).append(row)
    lists = ("is_model", "logprob", "old_logprob", "tool")
    same = ("step", "sequence", "env", "prompt")
    return [
        {name: tokens[0][name] for name in same} | {name: [token[name] for token in tokens] for name in lists}
        for tokens in rows.values()
    ]


def plain(table, folder):
    pq.write_table(table, folder / "tokens.parquet", row_group_size=50)
    return folder / "tokens.parquet"


def shuffled(table, folder):
    order = np.random.default_rng(1).permutation(len(table))
    return plain(table.take(order), folder)


def in_folders(table, folder):
    for rank in (0, 1):
        (folder / f"rank_{rank}").mkdir()
        mine = table.filter(pa.array(np.asarray(table["sequence"]) % 2 == rank))
        plain(mine, folder / f"rank_{rank}")
    (folder / "_SUCCESS").write_text("")
    (folder / "config.yaml").write_text("a: 1")
    return folder


def by_pattern(table, folder):
    return f"{in_folders(table, folder)}/rank_*/*.parquet"


def hive(table, folder):
    ds.write_dataset(
        table, folder, format="parquet", partitioning=ds.partitioning(pa.schema([("step", pa.int64())]), flavor="hive")
    )
    return folder


def in_memory(table, folder):
    import fsspec

    at = f"memory://{folder.name}/run"
    for step in STEPS:
        with fsspec.open(f"{at}/step={step}/tokens.parquet", "wb") as handle:
            pq.write_table(table.filter(pa.array(np.asarray(table["step"]) == step)), handle)
    return at


def of_other_types(table, folder):
    columns = {name: table[name] for name in table.column_names}
    columns["is_model"] = columns["is_model"].cast(pa.int8())
    columns["step"] = columns["step"].cast(pa.float64())
    return plain(pa.table(columns), folder)


def lists_of_parquet(table, folder):
    return plain(pa.Table.from_pylist(nested(table)), folder)


def lists_of_datasets(table, folder):
    from datasets import Dataset

    Dataset.from_list(nested(table)).to_parquet(folder / "d.parquet")
    return folder


def lists_of_pandas(table, folder):
    import pandas as pd

    pd.DataFrame(nested(table)).to_parquet(folder / "p.parquet")
    return folder / "p.parquet"


def rollouts(table, folder):
    lines = [row | {"is_model": [int(flag) for flag in row["is_model"]], "output": "text"} for row in nested(table)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def padded(table, step):
    mine = table.filter(pa.array(np.asarray(table["step"]) == step))
    shape = (SEQUENCES, WIDTH)
    arrays = {"logprobs": "logprob", "old_logprobs": "old_logprob", "model_mask": "is_model"}
    return {name: np.asarray(mine[column]).reshape(shape) for name, column in arrays.items()}


def numpy_arrays(table, folder):
    for step in STEPS:
        np.savez(folder / f"step_{step}.npz", **padded(table, step))
    return folder


def safetensors(table, folder):
    from safetensors.numpy import save_file

    for step in STEPS:
        save_file(padded(table, step), folder / f"step_{step}.safetensors")
    return folder


def of_torch(table, folder):
    import torch

    for step in STEPS:
        arrays = {name: torch.from_numpy(array.copy()) for name, array in padded(table, step).items()}
        torch.save({**arrays, "step": step}, folder / f"dump{step}.pt")
    return folder


TABLES = (plain, shuffled, in_folders, by_pattern, hive, in_memory, of_other_types, rollouts,
          lists_of_parquet, lists_of_datasets, lists_of_pandas)  # fmt: skip
DUMPS = (numpy_arrays, safetensors, of_torch)


def batches(source):
    return {step: TokenBatch.validated(**tensors) for step, tensors in read_tokens(source)}


@pytest.mark.slow
@pytest.mark.parametrize("write", [*TABLES, *DUMPS], ids=lambda write: write.__name__)
def test_each_source_gives_the_tokens_of_the_plain_table(table, tmp_path, monkeypatch, write):
    (tmp_path / "plain").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(plan, "AT_ONCE", 60)  # several parts
    expected = batches(plain(table, tmp_path / "plain"))
    batch_by_step = batches(write(table, tmp_path / "other"))
    assert [*batch_by_step] == list(STEPS)
    for step, batch in batch_by_step.items():
        wanted = expected[step]
        for name in ("logprobs", "old_logprobs"):
            np.testing.assert_array_equal(batch.logprobs[name], wanted.logprobs[name])
        np.testing.assert_array_equal(batch.model_mask, wanted.model_mask)
        np.testing.assert_array_equal(batch.sequence, wanted.sequence)
        if write in TABLES:
            assert batch.names == wanted.names
            assert batch.labels.keys() == wanted.labels.keys()
            for name, values in wanted.labels.items():
                np.testing.assert_array_equal(batch.labels[name], values, err_msg=name)


@pytest.mark.slow
def test_s3_on_loopback_is_read_as_a_folder(table, tmp_path, monkeypatch):
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        filesystem = fsspec.filesystem("s3")
        filesystem.mkdir("runs")
        filesystem.put(str(plain(table, tmp_path)), "runs/one/step=3/tokens.parquet")
        assert [*batches("s3://runs/one")] == list(STEPS)
    finally:
        server.stop()


def test_columns_may_have_other_names_and_steps_may_be_left_out(table, tmp_path):
    renamed = table.rename_columns(["it", "sequence", "position", "loss_mask", "lp", *table.column_names[5:]])
    file = plain(renamed, tmp_path)
    columns = {"step": "it", "is_model": "loss_mask", "logprob": "lp"}
    with TokenLog(file, columns=columns, since=10) as log:
        lines = log.explained()
        assert [step for part in log.parts for step, _ in part.steps(None, log.skipped)] == [10, 11]
    assert (
        "columns: step=it, sequence, position, is_model=loss_mask, logprob=lp, old_logprob, tool, env, prompt" in lines
    )
    assert "pair policy: yes" in lines
    assert "pair mismatch: no, rollout_logprob is missing" in lines
    assert lines[-1] == "slices: text_only, post_tool, tool, env"
    with pytest.raises(SourceError, match="no column l"):
        TokenLog(file, columns={"logprob": "l"})


def test_a_log_without_log_probabilities_names_the_command_that_reads_it(tmp_path):
    (tmp_path / "verl.jsonl").write_text('{"input": "a", "output": "b", "score": 1.0, "step": 3}\n')
    with pytest.raises(
        SourceError, match=r"verl\.jsonl: no log-probabilities, .*it has input, output, score, step.*tracker-diag audit"
    ):
        TokenLog(tmp_path)


def cut_off(table, folder):
    file = plain(table, folder / "b")
    file.write_bytes(file.read_bytes()[:-30])
    return r"b/tokens\.parquet: no Parquet file, or cut off"


def other_columns(table, folder):
    plain(table.drop_columns(["old_logprob"]), folder / "b")
    return r"b/tokens\.parquet: columns old_logprob are not in all files"


def corrupt(table, folder):
    file = plain(table, folder / "b")
    content = bytearray(file.read_bytes())
    content[200:2000] = b"x" * 1800
    file.write_bytes(content)
    return r"b/tokens\.parquet: row group 0: cannot be read"


def wrong_values(table, folder):
    table = table.set_column(0, "step", pa.array(np.asarray(table["step"]) + 0.5))
    plain(table, folder / "b")
    return r"b/tokens\.parquet: row group 0: column step: double given, expected integer"


def wrong_mask(table, folder):
    table = table.set_column(3, "is_model", pa.array(np.full(len(table), 2)))
    plain(table, folder / "b")
    return r"b/tokens\.parquet: row group 0: column is_model: int64 with values other than 0 and 1"


def lists_of_other_lengths(table, folder):
    rows = nested(table)
    rows[3]["logprob"].append(-1.0)
    pq.write_table(pa.Table.from_pylist(rows), folder / "b" / "tokens.parquet")
    return r"b/tokens\.parquet: row group 0: column \w+: row 3: \d values given, expected \d, as \w+ has"


def broken_lines(table, folder):
    rollouts(table, folder / "b")
    with (folder / "b" / "rollouts.jsonl").open("a") as lines:
        lines.write('{"step": 4, "logpr')
    return r"b/rollouts\.jsonl:31: no JSON"


def spoilt_line(table, folder, given):
    rollouts(table, folder / "b")
    lines = (folder / "b" / "rollouts.jsonl").read_text().splitlines()
    lines[3] = json.dumps(json.loads(lines[3]) | {"logprob": given})
    (folder / "b" / "rollouts.jsonl").write_text("\n".join(lines))
    return r"b/rollouts\.jsonl:4: column logprob: "


def short_line(table, folder):
    return spoilt_line(table, folder, [-1.0]) + f"1 values given, expected {WIDTH}, as is_model has"


def line_of_other_values(table, folder):
    return spoilt_line(table, folder, ["a"] * WIDTH) + "list<.*double> expected, as in the lines before"


def row_twice(table, folder):
    plain(pa.concat_tables([table, table.slice(5, 1)]), folder / "b")
    return r"1 rows are there twice, the first of them step 0, sequence 100, position 5"


ONE_SEQUENCE = (short_line, line_of_other_values, row_twice)
"""What is bad in one sequence alone, so that no other is left out."""
BAD = (*ONE_SEQUENCE, cut_off, other_columns, corrupt, wrong_values, wrong_mask, lists_of_other_lengths, broken_lines)


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__)
def test_what_is_bad_is_named_with_its_place_or_left_out_and_counted(table, tmp_path, spoil):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    plain(table, tmp_path / "a")
    sequence = pa.array(np.asarray(table["sequence"]) + 100)
    message = spoil(table.set_column(1, "sequence", sequence), tmp_path)
    with pytest.raises(SourceError, match=message):
        [*read_tokens(tmp_path)]
    with TokenLog(tmp_path, skip_bad=True) as log:
        steps = {step: tensors for part in log.parts for step, tensors in part.steps(None, log.skipped)}
    assert set(STEPS) <= set(steps)
    assert log.skipped.count >= 1
    tokens = sum(len(tensors["logprobs"]) for tensors in steps.values())
    assert spoil not in ONE_SEQUENCE or tokens == 2 * len(table) - WIDTH
