"""A collector gets what an app and its worker measure, over OTLP. It reads with the messages of OpenTelemetry's SDK."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.cli import Cli, terminate
from tests.support.patience import PATIENCE

TASKS = """
import asyncio
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from evsched import App, Retry
from evsched.tracing import trace

NEVER = 1e8
spans, loggers = TracerProvider(), LoggerProvider()
spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=NEVER))
loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(), schedule_delay_millis=NEVER))
reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=NEVER)
app = App(queue="QUEUE")
trace(app, spans, meter_provider=MeterProvider([reader]), logger_provider=loggers)

@app.task(retry=Retry(attempts=1))
async def fail() -> None:
    raise ValueError("boom")

async def enqueue() -> None:
    await fail.enqueue()
    await app.close()

if __name__ == "__main__":
    asyncio.run(enqueue())
"""


class Collector(ThreadingHTTPServer):
    """Keeps what is sent to `/v1/traces`, `/v1/metrics` and `/v1/logs`, as a collector of OpenTelemetry decodes it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.records: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def keep(self, path: str, body: bytes) -> None:
        match path:
            case "/v1/traces":
                request = ExportTraceServiceRequest.FromString(body)
                spans = [one for group in request.resource_spans for scope in group.scope_spans for one in scope.spans]
                self.spans |= {one.name: one for one in spans}
            case "/v1/metrics":
                request = ExportMetricsServiceRequest.FromString(body)
                scopes = [scope for group in request.resource_metrics for scope in group.scope_metrics]
                self.metrics |= {one.name: one for scope in scopes for one in scope.metrics}
            case _:
                request = ExportLogsServiceRequest.FromString(body)
                self.records += [
                    one for group in request.resource_logs for scope in group.scope_logs for one in scope.log_records
                ]


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        self.server.keep(self.path, self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print nothing."""


@contextmanager
def collecting() -> Generator[Collector]:
    with Collector() as collector:
        thread = Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def attributes(found: Any) -> Iterator[tuple[str, str]]:
    return ((one.key, one.value.string_value) for one in found.attributes)


@pytest.mark.extra
def test_a_collector_gets_spans_metrics_and_records_when_a_worker_shuts_down(cli: Cli, queue: str) -> None:
    (cli.folder / "tasks.py").write_text(TASKS.replace("QUEUE", queue))
    with collecting() as collector:
        cli.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        subprocess.run([sys.executable, "tasks.py"], cwd=cli.folder, env=cli.environment, timeout=PATIENCE, check=True)
        enqueued, sent = collector.spans["enqueue fail"], collector.metrics["messaging.client.sent.messages"]
        with cli.started("dev", "tasks:app") as (child, log):
            log.until("JobBuried")
            assert "run fail" not in collector.spans
            assert collector.records == []
            assert terminate(child) == 0
    run, [record] = collector.spans["run fail"], collector.records
    [link] = run.links
    assert (link.trace_id, link.span_id) == (enqueued.trace_id, enqueued.span_id)
    assert (run.status.code, run.status.message) == (run.status.STATUS_CODE_ERROR, "boom")
    assert (record.trace_id, record.span_id) == (run.trace_id, run.span_id)
    assert record.event_name == "messaging.process.exception"
    assert {("exception.type", "ValueError"), ("exception.message", "boom")} <= {*attributes(record)}
    assert {("messaging.destination.name", queue), ("messaging.system", "evsched")} <= {*attributes(run)}
    for name in ("messaging.process.duration", "evsched.job.lateness"):
        [point] = collector.metrics[name].histogram.data_points
        assert point.count == 1
    for metric in (sent, collector.metrics["messaging.client.consumed.messages"]):
        [point] = metric.sum.data_points
        assert point.as_int == 1
