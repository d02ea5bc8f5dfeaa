"""The parts of the dashboards: panels of one style, whose description says what to do when they look bad."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

with warnings.catch_warnings():
    # The SDK's classic schema is the one that every Grafana from 10 on reads from a file.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries

from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24

RED, ORANGE, GREEN = "red", "orange", "green"

UNKNOWN = -1
"""The value of a tile if no process reports one. A tile that kept the last value would look as if all were well."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression, and how its series are named."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel. `width` is of 24 columns, `bad` the value from which it is red."""

    title: str
    what: str
    mend: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    bad: float | None = None
    warn: float | None = None
    low_is_bad: bool = False
    texts: dict[float, str] = field(default_factory=dict[float, str])
    """What is shown instead of a value."""
    stacked: bool = False
    signed: bool = False
    colors: dict[str, str] = field(default_factory=dict[str, str])

    def build(self) -> timeseries.Panel | stat.Panel | heatmap.Panel:
        """Return the SDK's builder of this panel."""
        made = {"timeseries": self._lines, "stat": self._stat, "heatmap": self._heatmap}[self.kind]()
        made.title(self.title).description(f"{self.what}\n\n**When it looks bad:** {self.mend}")
        made.datasource(SOURCE).unit(self.unit).span(self.width).height(self.height)
        for at, query in enumerate(self.queries):
            target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto").range()
            target.ref_id(chr(ord("A") + at))
            if self.kind == "heatmap":
                target.format(PromQueryFormat.HEATMAP)
            made.with_target(target)
        return made

    def _thresholds(self) -> dashboard.ThresholdsConfig:
        good, bad = (RED, GREEN) if self.low_is_bad else (GREEN, RED)
        if UNKNOWN in self.texts:
            steps = [models.Threshold(value=None, color=ORANGE), models.Threshold(value=0, color=good)]
        else:
            steps = [models.Threshold(value=None, color=good)]
        if self.warn is not None:
            steps.append(models.Threshold(value=self.warn, color=ORANGE))
        if self.bad is not None:
            steps.append(models.Threshold(value=self.bad, color=bad))
        return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)

    def _lines(self) -> timeseries.Panel:
        made = timeseries.Panel().line_width(1).fill_opacity(30 if self.stacked else 8)
        if not self.signed:
            made.min(0)
        made.show_points(common_models.VisibilityMode.NEVER)
        made.legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        made.tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
        if self.stacked:
            made.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
        if self.bad is not None:
            made.thresholds(self._thresholds())
            made.thresholds_style(
                common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
            )
        for name, color in self.colors.items():
            fixed = {"mode": "fixed", "fixedColor": color}
            made.override_by_name(name, [models.DynamicConfigValue(id_val="color", value=fixed)])
        return made

    def _stat(self) -> stat.Panel:
        made = stat.Panel().thresholds(self._thresholds())
        made.color_mode(common_models.BigValueColorMode.BACKGROUND).graph_mode(common_models.BigValueGraphMode.AREA)
        made.mappings(
            [models.ValueMap({f"{value:g}": models.ValueMappingResult(text)}) for value, text in self.texts.items()]
        )
        made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        return made

    def _heatmap(self) -> heatmap.Panel:
        made = heatmap.Panel().calculate(False)
        made.color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(heatmap_models.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        made.y_axis(heatmap.YAxisConfig().unit(self.unit))
        return made


@dataclass(frozen=True)
class Row:
    """A row of panels, with a title."""

    title: str
    panels: Sequence[Panel]


def queried(name: str, label: str, query: str, *, many: bool) -> dashboard.QueryVariable:
    """Return a choice among the values of a label."""
    made = dashboard.QueryVariable(name).label(label).query(query).datasource(SOURCE)
    made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.ALPHABETICAL_ASC)
    if many:
        made.multi(True).include_all(True).all_value(".*")
        made.current(models.VariableOption(text="All", value="$__all", selected=True))
    return made


def page(
    uid: str, title: str, what: str, variables: Sequence[dashboard.QueryVariable], rows: Sequence[Row]
) -> models.Dashboard:
    """Return a dashboard."""
    made = dashboard.Dashboard(title).uid(uid).description(what).tags(["evsched"]).timezone("browser").editable()
    made.time("now-1h", "now").refresh("5s").tooltip(models.DashboardCursorSync.CROSSHAIR)
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    for variable in variables:
        made.with_variable(variable)
    made.link(
        dashboard.DashboardLink("evsched")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["evsched"])
        .icon("external link")
        .tooltip("")
        .url("")
    )
    for row in rows:
        made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made.with_panel(panel.build())
    built = made.build()
    for number, panel in enumerate(built.panels or [], 1):
        panel.id_val = number
    return built
