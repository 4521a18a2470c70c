"""Traces that the real clients have written: MLflow, OpenTelemetry's SDK, W&B Weave, Trackio."""

import json
import runpy
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracker_diag import read_traces
from tracker_diag.errors import SourceError
from tracker_diag.samples.traces.read import records_in
from tracker_diag.trackers.odd import Odd

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("made.py"))))
WEAVE = Path(__file__).with_name("weave_export.jsonl")


def records_of(source):
    odd = Odd()
    return records_in(source, odd), odd.notes


def names_and_status(record):
    return [(call["name"], call["status"]) for call in record["calls"]]


def reads_page(fails):
    """What the tool does in all of them."""
    if fails:
        raise TimeoutError("no page")


@pytest.mark.parametrize("file", ["weave_complete.jsonl", "weave_export.jsonl"])
def test_calls_of_weave(file):
    """As its clients post them since 0.54, and as `get_calls` gives them back."""
    records, notes = records_of(str(WEAVE.with_name(file)))
    assert notes == ()
    assert [record["step"] for record in records] == [0, 1]
    for record in records:
        assert names_and_status(record) == [("search", "ok"), ("search", "timeout")]
        assert record["calls"][0]["arguments"] == {"q": made.QUESTION}
        assert (record["prompt"][0]["content"], record["text"]) == (made.QUESTION, made.ANSWER)
        assert (record["reward"], record["turns"]) == (1.0, 1)
        assert 0 < record["seconds"] < 1


def test_an_export_of_weave_that_names_its_run(tmp_path):
    calls = [json.loads(line) for line in WEAVE.read_text().splitlines()]
    steps = {trace: at for at, trace in enumerate(dict.fromkeys(call["trace_id"] for call in calls))}
    for call in calls:
        call["attributes"].pop("step")
        usage = {"usage": {"m": {"completion_tokens": 5}}}
        call |= {"wb_run_id": "e/p/run-a", "wb_run_step": 7 + steps[call["trace_id"]], "summary": usage}
    file = tmp_path / "export.jsonl"
    file.write_text("".join(json.dumps(call) + "\n" for call in calls))
    records, _ = records_of(str(file))
    assert [record["run"] for record in records] == ["run-a"] * 2
    assert {record["step"] for record in records} == {7, 8}
    assert records[0]["length"] == 5.0


@pytest.fixture
def spans():
    """Have OpenTelemetry's SDK make the spans of two tasks, by `convention`; gives the finished spans."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    def make(convention):
        exporter = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource({"run_id": "r"}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("agent")
        for step in range(2):
            with tracer.start_as_current_span("agent", attributes=convention["agent"] | {"step": step, "reward": 0.5}):
                for name, part in convention["tools"].items():
                    try:
                        with tracer.start_as_current_span(f"execute_tool {name}", attributes=part):
                            reads_page(name == "read")
                    except TimeoutError:
                        pass
                with tracer.start_as_current_span("chat", attributes=convention["model"]):
                    pass
        return exporter.get_finished_spans()

    return make


OPENINFERENCE = {
    "agent": {"openinference.span.kind": "AGENT", "input.value": made.QUESTION, "metadata": '{"env": "web"}'},
    "tools": {
        name: {"openinference.span.kind": "TOOL", "tool.name": name, "input.value": json.dumps(made.ARGUMENTS)}
        for name in ("search", "read")
    },
    "model": {
        "openinference.span.kind": "LLM",
        "llm.token_count.completion": 7,
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.contents.0.message_content.text": made.QUESTION,
        "llm.input_messages.1.message.role": "assistant",
        "llm.input_messages.1.message.tool_calls.0.tool_call.id": "a",
        "llm.input_messages.1.message.tool_calls.0.tool_call.function.name": "search",
        "llm.input_messages.1.message.tool_calls.0.tool_call.function.arguments": json.dumps(made.ARGUMENTS),
        "llm.input_messages.2.message.role": "tool",
        "llm.input_messages.2.message.content": "4",
        "llm.input_messages.2.message.tool_call_id": "a",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": made.ANSWER,
    },
}
GEN_AI = {
    "agent": {"gen_ai.operation.name": "invoke_agent", "env": "web"},
    "tools": {
        name: {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name,
               "gen_ai.tool.call.arguments": json.dumps(made.ARGUMENTS)}
        for name in ("search", "read")
    },
    "model": {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.input.messages": json.dumps(made.GEN_AI[:3]),
        "gen_ai.output.messages": json.dumps(made.GEN_AI[3:]),
        "gen_ai.response.finish_reasons": ["length"],
    },
}  # fmt: skip
CONVENTIONS = {"openinference": OPENINFERENCE, "gen_ai": GEN_AI}


def otlp(spans):
    """As a collector's file exporter writes what the SDK's OTLP exporter sends: one request a line."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    return "".join(json.dumps(MessageToDict(encode_spans([span]))) + "\n" for span in spans)


def printed(spans):
    """As `ConsoleSpanExporter` prints them."""
    import io

    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    out = io.StringIO()
    ConsoleSpanExporter(out=out).export(spans)
    return out.getvalue()


@pytest.mark.parametrize("write", [otlp, printed])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_spans_of_opentelemetry(tmp_path, spans, convention, write):
    file = tmp_path / "spans.json"
    file.write_text(write(spans(CONVENTIONS[convention])))
    records, notes = records_of(str(file))
    assert notes == ()
    assert [(record["run"], record["step"]) for record in records] == [("r", 0), ("r", 1)]
    for record in records:
        assert names_and_status(record) == [("search", "ok"), ("read", "timeout")]
        assert record["calls"][0]["arguments"] == made.ARGUMENTS
        assert 0 <= record["calls"][0]["seconds"] < 10
        assert record["prompt"][0] == {"role": "user", "content": made.QUESTION}
        assert record["text"] == made.ANSWER
        assert (record["turns"], record["reward"], record["env"], record["length"]) == (1, 0.5, "web", 7.0)
        assert record.get("truncated") == (True if convention == "gen_ai" else None)


def test_traces_of_trackio(trackio_runs):
    import trackio

    run = trackio_runs.start()
    for step in range(2):
        spans = [{"id": "t", "name": "search", "kind": "tool", "duration_ms": 250, "error": "timed out"},
                 {"id": "m", "name": "model", "kind": "generation", "usage": {"completion_tokens": 7}}]  # fmt: skip
        trackio.log({"chat": trackio.Trace(made.OPENAI, metadata={"reward": 0.5}),
                     "spans": [trackio.Trace(made.OPENAI[1:2], spans=spans)]}, step=step)  # fmt: skip
    trackio.finish()
    records, _ = records_of(f"trackio:{run.project}/{run.name}")
    assert [record["step"] for record in records] == [0, 0, 1, 1]
    by_calls = {len(record["calls"]): record for record in records}
    assert names_and_status(by_calls[2]) == [("search", "ok"), ("read", "error")]
    assert (by_calls[2]["reward"], by_calls[2]["text"]) == (0.5, made.ANSWER)
    (call,) = by_calls[1]["calls"]
    assert (call["status"], call["seconds"]) == ("timeout", 0.25)
    assert by_calls[1]["length"] == 7.0
    assert len(records_of(f"trackio:{run.project}")[0]) == 4
    with pytest.raises(SourceError, match="no traces"):
        records_of(f"trackio:{run.project}/none")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")  # of MLflow, about its own models
class TestMlflow:
    """One store for all of it, as it takes seconds to make traces."""

    @pytest.fixture
    def traced(self, mlflow_store):
        import mlflow
        from mlflow.entities import AssessmentSource

        mlflow.set_experiment("agents")
        made_of = []
        with mlflow.start_run() as run:
            for step in range(3):
                with mlflow.start_span("agent", span_type="AGENT") as agent:
                    agent.set_inputs({"question": made.QUESTION})
                    with mlflow.start_span("search", span_type="TOOL") as tool:
                        tool.set_inputs(made.ARGUMENTS)
                    try:
                        with mlflow.start_span("read", span_type="TOOL"):
                            reads_page(step > 0)
                    except TimeoutError:
                        pass
                    with mlflow.start_span("model", span_type="CHAT_MODEL") as model:
                        model.set_inputs({"messages": made.OPENAI[:2]})
                        model.set_outputs({"choices": [{"message": made.OPENAI[-1]}]})
                    mlflow.update_current_trace(tags={"reward": str(step)})
                mlflow.log_metric("reward", float(step), step=10 * step, timestamp=int(1000 * time.time()) + 1)
                made_of.append(agent.trace_id)
        mlflow.flush_trace_async_logging()
        for trace in made_of:
            source = AssessmentSource(source_type="HUMAN", source_id="a")
            mlflow.log_feedback(trace_id=trace, name="helpful", value="yes", source=source)
        return SimpleNamespace(run=run.info.run_id, store=mlflow_store, client=mlflow.MlflowClient())

    @pytest.mark.nightly
    def test_traces_are_read_and_joined_to_steps_by_the_clock(self, traced):
        source = f"mlflow:{traced.run}@{traced.store}"
        result = read_traces(source)
        assert result.notes == ()
        assert [(item["run"], item["step"], item["reward"]) for item in result.records] == [
            (traced.run, 10 * step, float(step)) for step in range(3)
        ]
        assert {row.tool: (row.calls, row.failed, row.timeout) for row in result.tools} == {
            "search": (3, 0.0, 0.0), "read": (3, 2 / 3, 2 / 3)
        }  # fmt: skip
        first = result.records[0]
        assert first["text"] == made.ANSWER
        assert [item["content"] for item in first["prompt"]] == ["Be brief.", made.QUESTION]
        assert first["human"] == 1.0
        assert result.records == read_traces(f"mlflow:agents@{traced.store}").records

        with pytest.raises(SourceError, match="no experiment 'none'"):
            read_traces(f"mlflow:none@{traced.store}")

    def test_a_file_of_traces_as_mlflow_writes_them(self, traced, tmp_path):
        (experiment,) = (
            search_experiment
            for search_experiment in traced.client.search_experiments()
            if search_experiment.name == "agents"
        )
        traces = traced.client.search_traces(locations=[experiment.experiment_id])
        file = tmp_path / "traces.jsonl"
        file.write_text("".join(trace.to_json() + "\n" for trace in traces))
        records, _ = records_of(str(file))
        assert [names_and_status(record)[1] for record in records] == [("read", "ok"), *[("read", "timeout")] * 2]
        assert all(record["run"] == traced.run for record in records)
