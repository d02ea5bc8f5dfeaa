// From Prometheus' answers to Grafana's data frames, as Grafana's Prometheus data source makes them.

import {
    applyFieldOverrides,
    cacheFieldDisplayNames,
    FieldConfigOptionsRegistry,
    FieldType,
    toDataFrame,
} from '@grafana/data';

const toNumber = (text) => ({ '+Inf': Infinity, '-Inf': -Infinity })[text] ?? Number(text);

function seriesName({ __name__: name = '', ...labels }, { legendFormat, expr }) {
    const pairs = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
    // Without a legend, Grafana makes a name from the labels in which the series differ.
    if (legendFormat === '__auto') return name || pairs.length ? undefined : expr;
    if (!legendFormat) return name + (pairs.length ? `{${pairs.join(', ')}}` : '') || expr;
    const all = { ...labels, __name__: name };
    return legendFormat.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => all[label] ?? '') || expr;
}

function samplesOf(series, target) {
    const samples = series.values ?? [series.value];
    return target.instant && !target.range ? samples.slice(-1) : samples;
}

function seriesFrames(target, result, step) {
    return result.map((series) => {
        const samples = samplesOf(series, target);
        const { __name__: name = 'Value', ...labels } = series.metric;
        return toDataFrame({
            refId: target.refId,
            fields: [
                // The interval tells the graph where samples are missing.
                {
                    name: 'Time',
                    type: FieldType.time,
                    config: { interval: step * 1000 },
                    values: samples.map(([ts]) => Math.round(ts * 1000)),
                },
                {
                    name,
                    type: FieldType.number,
                    labels,
                    config: { displayNameFromDS: seriesName(series.metric, target) },
                    values: samples.map(([, value]) => toNumber(value)),
                },
            ],
        });
    });
}

function tableFrame(target, result, several) {
    const labels = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))];
    const rows = result.flatMap((series) => samplesOf(series, target).map(([ts, value]) => [series.metric, ts, value]));
    return toDataFrame({
        refId: target.refId,
        fields: [
            { name: 'Time', type: FieldType.time, values: rows.map(([, ts]) => Math.round(ts * 1000)) },
            ...labels.map((label) => ({
                name: label,
                type: FieldType.string,
                values: rows.map(([m]) => m[label] ?? ''),
            })),
            {
                name: several ? `Value #${target.refId}` : 'Value',
                type: FieldType.number,
                values: rows.map(([, , value]) => toNumber(value)),
            },
        ],
    });
}

export function framesOf(panel, data) {
    const answers = data.panels[panel.id] ?? {};
    const targets = (panel.targets ?? []).filter((target) => !target.hide && answers[target.refId]?.result.length);
    return targets.flatMap((target) => {
        const { result } = answers[target.refId];
        return target.format === 'table'
            ? [tableFrame(target, result, panel.targets.length > 1)]
            : seriesFrames(target, result, data.step);
    });
}

const STANDARD = [
    'unit',
    'decimals',
    'min',
    'max',
    'fieldMinMax',
    'displayName',
    'noValue',
    'color',
    'thresholds',
    'mappings',
    'filterable',
];
// The defaults of Grafana's panels for options that a dashboard leaves out.
const CUSTOM = {
    timeseries: {
        drawStyle: 'line',
        lineInterpolation: 'linear',
        lineWidth: 1,
        fillOpacity: 0,
        gradientMode: 'none',
        pointSize: 5,
        showPoints: 'auto',
        spanNulls: false,
        barAlignment: 0,
        barWidthFactor: 0.6,
        axisPlacement: 'auto',
        axisColorMode: 'text',
        axisBorderShow: false,
        axisCenteredZero: false,
        axisLabel: '',
        scaleDistribution: { type: 'linear' },
        stacking: { mode: 'none', group: 'A' },
        thresholdsStyle: { mode: 'off' },
        hideFrom: { viz: false, legend: false, tooltip: false },
    },
    table: { align: 'auto', cellOptions: { type: 'auto' }, inspect: false },
};
const GREEN_TO_80 = {
    mode: 'absolute',
    steps: [
        { color: 'green', value: null },
        { color: 'red', value: 80 },
    ],
};

// JSON has no infinity, so a dashboard has null for the first step's value.
const withBase = (thresholds) => ({
    ...thresholds,
    steps: thresholds.steps.map((step, i) => (i === 0 ? { ...step, value: -Infinity } : step)),
});

export function fieldConfigOf({ type, fieldConfig = {} }) {
    const { defaults = {}, overrides = [] } = fieldConfig;
    return {
        defaults: {
            ...defaults,
            color: defaults.color ?? { mode: type === 'timeseries' ? 'palette-classic' : 'thresholds' },
            thresholds: withBase(defaults.thresholds ?? GREEN_TO_80),
            custom: { ...CUSTOM[type], ...defaults.custom },
        },
        overrides: overrides.map(({ matcher, properties }) => ({
            matcher,
            properties: properties.map(({ id, value }) => ({
                id,
                value: id === 'thresholds' ? withBase(value) : value,
            })),
        })),
    };
}

// Grafana's panels declare which options they know. Here, the options that the dashboard sets count as known.
function registryOf({ defaults, overrides }, replaceVariables) {
    const custom = Object.keys(defaults.custom).map((key) => `custom.${key}`);
    const overridden = overrides.flatMap(({ properties }) => properties.map(({ id }) => id));
    const ids = new Set([...STANDARD, ...custom, ...overridden]);
    return new FieldConfigOptionsRegistry(() =>
        [...ids].map((id) => ({
            id,
            name: id,
            path: id.replace(/^custom\./, ''),
            isCustom: id.startsWith('custom.'),
            process: (value, { field }) =>
                id === 'displayName' && value ? replaceVariables(value, field?.labels) : value,
            shouldApply: (field) => field.type !== FieldType.time,
        })),
    );
}

export function withFieldConfig(frames, fieldConfig, { theme, timeZone, replaceVariables }) {
    const ready = applyFieldOverrides({
        data: frames,
        fieldConfig,
        fieldConfigRegistry: registryOf(fieldConfig, replaceVariables),
        replaceVariables,
        theme,
        timeZone,
    });
    cacheFieldDisplayNames(ready);
    return ready;
}

// ${name}, $name and [[name]]: a variable's value when the dashboard was saved, or a field's label.
export function variablesOf(dashboard) {
    const values = new Map(
        (dashboard.templating?.list ?? []).map(({ name, current }) => [name, [current?.text ?? ''].flat().join(' + ')]),
    );
    return (text, labels = {}) =>
        text.replace(/\$\{([\w.]+)(?::\w+)?\}|\$(\w+)|\[\[(\w+)\]\]/g, (whole, ...names) => {
            const name = names.slice(0, 3).find(Boolean);
            return labels[name.replace(/^__field\.labels\./, '')] ?? values.get(name) ?? whole;
        });
}
