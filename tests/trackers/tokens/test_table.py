import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.errors import SourceError
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.slices import Names, label
from tracker_diag.trackers.tokens import plan, table
from tracker_diag.trackers.tokens.log import read_tokens


def write(file, rows, group=None, **drop):
    table = pa.table({name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)} | drop)
    pq.write_table(table, file, row_group_size=group)


COLUMNS = ("step", "sequence", "position", "is_model", "logprob", "old_logprob")
ROWS = [
    (step, sequence, position, position not in (0, 3), -0.1 * position, -0.2 * position)
    for step in (0, 1, 5)
    for sequence in (0, 1)
    for position in range(6)
]


@settings(max_examples=settings().max_examples // 5)
@given(st.integers(1, 40), st.randoms())
def test_row_groups_of_any_size_and_tokens_in_any_order_within_a_step(tmp_path_factory, group, random):
    file = tmp_path_factory.mktemp("t") / "tokens.parquet"
    shuffled = sorted(ROWS, key=lambda row: (row[0], random.random()))
    write(file, shuffled, group)
    result = list(read_tokens(file))
    assert [step for step, _ in result] == [0, 1, 5]
    for _, arrays in result:
        batch = TokenBatch.validated(**arrays)
        np.testing.assert_allclose(batch.log_ratio("policy"), np.tile(0.1 * np.arange(6), 2), atol=1e-6)
        np.testing.assert_array_equal(label(batch, Names())["context"], [3, 0, 0, 3, 1, 1] * 2)


def test_post_tool_is_taken_from_what_the_table_knows(tmp_path):
    file = tmp_path / "tokens.parquet"
    rows = [row for row in ROWS if row[0] == 0 and row[1] == 0]
    after = [False] * 5 + [True]
    write(file, rows, after_tool=after)
    assert label(TokenBatch.validated(**next(read_tokens(file))[1]), Names())["context"].tolist() == [3, 0, 0, 3, 0, 1]
    write(file, rows, tool=[None, None, "search", None, "search", ""])
    assert label(TokenBatch.validated(**next(read_tokens(file))[1]), Names())["context"].tolist() == [3, 0, 1, 3, 1, 0]


def test_what_the_table_knows_of_tokens_labels_them(tmp_path):
    file = tmp_path / "tokens.parquet"
    rows = [row for row in ROWS if row[0] == 0 and row[1] == 0]
    write(
        file, rows, tool=[None, None, "search", None, "search", ""], env=["web"] * 6, turn=[None, 0, 0, None, 1, 1],
        policy_lag=[None, 2, 2, None, 2, 3], advantage=[None, 0.5, 0.5, None, -1.0, 0.0],
        control=[None, True, False, None, False, False], prompt=[7] * 6,
    )  # fmt: skip
    batch = TokenBatch.validated(**next(read_tokens(file))[1])
    write(file, rows, prompt=["7"] * 6)
    (as_text,) = {int(code) for code in TokenBatch.validated(**next(read_tokens(file))[1]).labels["prompt"]}
    assert set(batch.labels["prompt"].tolist()) == {as_text}
    rows = {name: codes[batch.model_mask].tolist() for name, codes in label(batch, Names()).items()}
    assert rows == {
        "context": [0, 1, 1, 0], "tool": [16, 0, 0, 16], "env": [0] * 4, "turn": [0, 0, 1, 1],
        "policy_lag": [2, 2, 2, 3], "advantage": [0, 0, 1, 2], "control": [0, 1, 1, 1],
    }  # fmt: skip


def test_nulls_off_the_model_tokens_are_none_of_our_business(tmp_path):
    file = tmp_path / "tokens.parquet"
    rows = [(*row[:4], row[4] if row[3] else None, row[5] if row[3] else None) for row in ROWS]
    write(file, rows)
    for _, arrays in read_tokens(file):
        batch = TokenBatch.validated(**arrays)
        assert all(np.isfinite(values[batch.model_mask]).all() for values in batch.logprobs.values())


def bad(tmp_path, rows, message, **columns):
    file = tmp_path / "tokens.parquet"
    write(file, rows, **columns)
    with pytest.raises(SourceError) as error:
        list(read_tokens(file))
    assert message in str(error.value)


def test_a_token_that_is_there_twice_is_refused_with_its_place(tmp_path):
    message = "1 rows are there twice, the first of them step 0, sequence 0, position 2"
    bad(tmp_path, [ROWS[20], ROWS[2], ROWS[2]], message)


def test_no_rows(tmp_path):
    write(tmp_path / "full.parquet", ROWS)
    pq.write_table(pq.read_table(tmp_path / "full.parquet").slice(0, 0), tmp_path / "tokens.parquet")
    with pytest.raises(SourceError, match=r"tokens\.parquet: no rows"):
        list(read_tokens(tmp_path / "tokens.parquet"))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (0, "1", "column step: string given, expected integer"),
        (0, None, "column step: 1 nulls, expected none"),
        (2, "3", "column position: string given, expected integer"),
        (3, "yes", "column is_model: string given, expected boolean"),
        (3, None, "column is_model: 1 nulls, expected none"),
        (4, 1, "column logprob: int64 given, expected floating"),
    ],
)
def test_a_column_of_another_kind_is_named(tmp_path, column, value, message):
    rows = ROWS[:1] if value is None else []
    bad(tmp_path, [*rows, (*ROWS[0][:column], value, *ROWS[0][column + 1 :])], message)


def test_a_missing_column_is_named(tmp_path):
    file = tmp_path / "tokens.parquet"
    pq.write_table(pa.table({"step": [1], "sequence": [1], "logprob": [0.1]}), file)
    with pytest.raises(SourceError, match="column position is missing; it has step, sequence, logprob"):
        list(read_tokens(file))


def test_no_parquet_file(tmp_path):
    (tmp_path / "x.parquet").write_text("step,sequence")
    with pytest.raises(SourceError, match=r"x\.parquet: no Parquet file"):
        list(read_tokens(tmp_path / "x.parquet"))
    with pytest.raises(SourceError, match=r"none\.parquet: No such file"):
        list(read_tokens(tmp_path / "none.parquet"))


TEXTS = ["string", "large_string", "string_view", "dictionary"]


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_of_any_kind_are_texts(tmp_path, kind):
    names = pa.array(["search", None, "", "search"])
    names = names.dictionary_encode() if kind == "dictionary" else names.cast(getattr(pa, kind)())
    file = tmp_path / "tokens.parquet"
    write(file, ROWS[:4], tool=names)
    (step, result), *rest = read_tokens(file)
    assert (step, rest) == (0, [])
    assert (result["tool"].tolist(), result["tool_names"]) == ([0, -1, -1, 0], ["search"])
    assert result["after_tool"].tolist() == [True, False, False, True]


def test_bytes_that_are_no_text_are_reported_with_their_column(tmp_path):
    file = tmp_path / "tokens.parquet"
    names = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xffa")]
    )
    write(file, ROWS[:2], tool=names)
    with pytest.raises(SourceError, match=r"tokens\.parquet: column tool: "):
        list(read_tokens(file))


@pytest.mark.slow
def test_a_step_that_claims_any_number_of_tokens_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "MOST_TOKENS", 5_000_000)
    n = 20_000_000  # 20 kB of file: runs of the same value
    columns = {"step": pa.array(np.zeros(n, np.int8)), "is_model": pa.array(np.ones(n, bool))}
    columns |= dict.fromkeys(("sequence", "position"), columns["step"]) | {"logprob": pa.array(np.zeros(n, np.float32))}
    file = tmp_path / "tokens.parquet"
    pq.write_table(pa.table(columns), file)
    del columns
    before = pa.total_allocated_bytes()
    with pytest.raises(SourceError, match="step 0 has more than 5,000,000 tokens"):
        list(read_tokens(file))
    assert pa.total_allocated_bytes() <= before  # what earlier tests left may be collected meanwhile
    assert file.stat().st_size < 1 << 20


def test_texts_of_tokens_go_the_way_of_ids_and_only_where_they_are_asked_for(tmp_path, monkeypatch):
    file = tmp_path / "tokens.parquet"
    rows = [row for row in ROWS if row[0] in (0, 1) and row[1] == 0]
    text = ["the", " sum", None, "<script>", " sum", "\u202e"] * 2
    write(file, rows, token=text)
    assert "token_ids" not in next(read_tokens(file))[1]
    texts = table.Texts()
    for _, arrays in read_tokens(file, texts):
        batch = TokenBatch.validated(**arrays)
        assert [texts.decode([item]) for item in batch.token_ids] == [item or "" for item in text[:6]]
        assert texts.decode(batch.token_ids) == "the sum<script> sum\u202e"
    assert len(set(batch.token_ids.tolist())) == 5
    monkeypatch.setattr(table, "MOST_TEXTS", 3)
    few = table.Texts()
    assert few.ids(["a", "b", "a", "c", "d", "e"]).tolist() == [0, 1, 0, 2, -1, -1]
    assert few.decode([0, -1, 2]) == "ac"
