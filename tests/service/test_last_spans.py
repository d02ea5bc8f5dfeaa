"""A worker that shuts down passes on what OpenTelemetry's SDK has of its runs, with the SDK's own exporters."""

from __future__ import annotations

import pytest

from tests.support.cli import Cli, terminate

TASKS = """
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, ConsoleLogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from evsched import App, Retry
from evsched.tracing import trace

NEVER = 1e8
spans, loggers = TracerProvider(), LoggerProvider()
spans.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=open("spans", "w")), schedule_delay_millis=NEVER))
exporter = ConsoleLogRecordExporter(out=open("records", "w"))
loggers.add_log_record_processor(BatchLogRecordProcessor(exporter, schedule_delay_millis=NEVER))
reader = PeriodicExportingMetricReader(ConsoleMetricExporter(out=open("metrics", "w")), export_interval_millis=NEVER)
app = App(queue="QUEUE")
trace(app, spans, meter_provider=MeterProvider([reader]), logger_provider=loggers)

@app.task(retry=Retry(attempts=1))
async def fail() -> None:
    raise ValueError("boom")
"""


@pytest.mark.extra
def test_worker_that_shuts_down_exports_its_last_spans_metrics_and_records(cli: Cli, queue: str) -> None:
    (cli.folder / "tasks.py").write_text(TASKS.replace("QUEUE", queue))
    assert cli.run("enqueue", "fail", "--queue", queue).returncode == 0
    with cli.started("dev", "tasks:app") as (child, log):
        log.until("JobBuried")
        exported = [cli.folder / name for name in ("spans", "metrics", "records")]
        assert [path.read_text() for path in exported] == ["", "", ""]
        assert terminate(child) == 0
    spans, metrics, records = (path.read_text() for path in exported)
    assert '"name": "run fail"' in spans
    assert {"messaging.process.duration", "messaging.client.consumed.messages", "evsched.job.lateness"} <= {
        *metrics.split('"')
    }
    assert '"event_name": "messaging.process.exception"' in records
    assert "ValueError: boom" in records
