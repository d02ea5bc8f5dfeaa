"""The dashboards and rules: built from their sources, of one form, of Grafana's types, with metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from evsched.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "grafana"
RULES = GRAFANA / "prometheus"
TYPED = Path(__file__).parent / "typed"

DASHBOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}
PANELS = [
    pytest.param(name, panel, id=f"{name}: {panel['title']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
QUERIES: list[str] = [
    target["expr"]
    for dashboard in DASHBOARDS.values()
    for panel in dashboard["panels"]
    for target in panel.get("targets", [])
]


def families() -> dict[str, str]:
    """Return all metrics of evsched with their types."""
    page = generate_latest(Metrics("1").registry).decode()
    found = re.findall(r"^# TYPE (evsched_\w+) (\w+)$", page, re.MULTILINE)
    return {name: kind for name, kind in found if not name.endswith("_created")}


def named_in(text: str) -> set[str]:
    """Return the metrics that PromQL names; a histogram's series by their family."""
    found = set(re.findall(r"\bevsched_\w+", text))
    kinds = families()
    return {re.sub(r"_(bucket|sum|count)$", "", name) if name not in kinds else name for name in found}


def test_the_dashboards_are_what_build_py_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(GRAFANA / "build.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_metric_is_shown_and_every_shown_metric_exists() -> None:
    rules = re.sub(r"#.*", "", (RULES / "alerts.yml").read_text())
    exists = set(families())
    shown = named_in("\n".join(QUERIES) + rules)
    assert shown == exists


@pytest.mark.parametrize(("dashboard", "panel"), PANELS)
def test_a_panel_states_its_content_and_the_remedy(dashboard: str, panel: dict[str, Any]) -> None:
    assert 0 < len(panel["title"]) <= 40
    what, _, mend = panel["description"].partition("\n\n**When it looks bad:** ")
    assert what.endswith(".")
    assert mend.endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in ("s", "short", "ops", "percentunit")
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        expr = target["expr"]
        assert target["legendFormat"] not in ("", "__auto")
        assert 'job=~"$job"' in expr
        assert expr.count('job=~"$job"') == len(re.findall(r"\b(?:evsched_\w+|up)\{", expr))
        if panel["type"] == "stat":
            assert re.search(r" or vector\((0|-1)\)$", expr), "a tile shows the state now, not the last known one"
        if dashboard == "queue":
            assert expr.count('queue="$queue"') == len(re.findall(r"\bevsched_\w+", expr))


@pytest.mark.parametrize("expr", sorted(set(QUERIES)))
def test_a_query_fits_the_types_of_its_metrics(expr: str) -> None:
    kinds = families()
    counters = {name for name, kind in kinds.items() if kind == "counter"}
    for function, name in re.findall(r"\b(\w+)\((evsched_\w+)\{", expr):
        family = re.sub(r"_(bucket|sum|count)$", "", name) if name not in kinds else name
        grows = family in counters or kinds[family] == "histogram"
        if function != "sum" or "and on (job, instance) time() - evsched_start_time_seconds" not in expr:
            assert grows == (function in ("rate", "increase")), (
                "rate() and increase() are for counters and histograms, not for gauges"
            )
    for interval in re.findall(r"\[(.*?)\]", expr):
        assert interval == "$__rate_interval" or (interval in ("5m", "15m", "1h") and " or vector(" in expr)
    if "histogram_quantile" in expr:
        assert re.search(r"sum by \(le(, task)?\)", expr)


@pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)
def test_a_dashboard_has_its_panels_side_by_side(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    taken = set[tuple[int, int]]()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert names[:2] == ["datasource", "job"]
    assert dashboard["tags"] == ["evsched"]


def test_every_alert_has_its_section_in_the_runbook() -> None:
    text = (ROOT / "docs/alerts.md").read_text()
    anchors = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.+)$", text, re.M)}
    books = re.findall(r"runbook: docs/alerts\.md#(\S+)", (RULES / "alerts.yml").read_text())
    alerts = re.findall(r"alert: (\w+)", (RULES / "alerts.yml").read_text())
    assert len(books) == len(alerts)
    assert set(books) <= anchors
    assert all(f"`{name}`" in text for name in alerts)


def test_every_alert_is_tested() -> None:
    tests = (RULES / "alerts_test.yml").read_text()
    assert all(
        f"alertname: {name}\n" in tests for name in re.findall(r"alert: (\w+)", (RULES / "alerts.yml").read_text())
    )


@pytest.mark.extra
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: prometheus)")
@pytest.mark.parametrize(
    "words",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"), ("check", "config", "prometheus.yml")],
)
def test_promtool_finds_nothing(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *words],
        cwd=RULES,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.extra
@pytest.mark.skipif(
    not (TYPED / "node_modules/typescript").is_dir(), reason="no npm package typescript in tests/house/typed"
)
def test_the_dashboards_match_the_types_of_grafana(tmp_path: Path) -> None:
    lines = ['import type { Dashboard } from "@grafana/schema"', 'import type { Json } from "./json"']
    for kind in ("timeseries", "stat", "heatmap"):
        source = f"{kind.capitalize().replace('Timeseries', 'TimeSeries')}PanelCfg_types.gen"
        path = f"@grafana/schema/dist/esm/raw/composable/{kind}/panelcfg/x/{source}"
        field = "" if kind == "stat" else f", FieldConfig as {kind}Field"
        lines.append(f'import type {{ Options as {kind}{field} }} from "{path}"')
    for name, dashboard in DASHBOARDS.items():
        lines.append(f"export const {name}: Json<Dashboard> = {json.dumps(dashboard)}")
        for panel in dashboard["panels"]:
            if panel["type"] == "row":
                continue
            kind, number = panel["type"], f"{name}{panel['id']}"
            lines.append(f"export const {number}: Partial<Json<{kind}>> = {json.dumps(panel['options'])}")
            custom = panel["fieldConfig"]["defaults"].get("custom", {})
            if kind != "stat":
                lines.append(f"export const {number}Field: Partial<Json<{kind}Field>> = {json.dumps(custom)}")
    (tmp_path / "json.ts").write_text((TYPED / "json.ts").read_text())
    (tmp_path / "dashboards.ts").write_text("\n".join(lines) + "\n")
    (tmp_path / "node_modules").symlink_to(TYPED / "node_modules")
    options = "--noEmit --strict --skipLibCheck --moduleResolution bundler --module esnext --target es2022"
    done = subprocess.run(
        ["node", "node_modules/typescript/bin/tsc", *options.split(), "dashboards.ts"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
