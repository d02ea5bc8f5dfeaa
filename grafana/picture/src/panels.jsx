// What is inside a panel's frame, by its type. The defaults are those of Grafana's panels.

import {
    FieldType,
    getDisplayValueAlignmentFactors,
    getFieldDisplayValues,
    renderTextPanelMarkdown,
    VizOrientation,
} from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { useMemo } from 'react';

import { Heatmap } from './heatmap';

function Message({ width, height, children }) {
    const style = { width, height, display: 'grid', placeContent: 'center', textAlign: 'center', opacity: 0.65 };
    return <div style={style}>{children}</div>;
}

// A graph has a gap where a value is NaN or infinite, and where samples are missing. The component makes gaps for
// missing samples only in the first frame; Grafana's panel makes them for all frames before.
function withGaps(frame) {
    const time = frame.fields.find((field) => field.type === FieldType.time);
    const rows = [];
    time.values.forEach((ts, i) => {
        const before = time.values[i - 1];
        if (ts - before > time.config.interval * 1.5) rows.push({ ts: before + time.config.interval });
        rows.push({ ts, i });
    });
    const valuesOf = (field) => {
        if (field === time) return rows.map(({ ts }) => ts);
        const isGap = (value) => field.type === FieldType.number && !Number.isFinite(value);
        return rows.map(({ i }) => (isGap(field.values[i]) ? null : field.values[i]));
    };
    return {
        ...frame,
        length: rows.length,
        fields: frame.fields.map((field) => ({ ...field, values: valuesOf(field) })),
    };
}

function Graph({ panel, frames, width, height, timeRange, timeZone }) {
    // The component marks the frames that it has filled, so it must get the same frames each time.
    const stable = useMemo(() => {
        const legend = {
            showLegend: true,
            displayMode: 'list',
            placement: 'bottom',
            calcs: [],
            ...panel.options?.legend,
        };
        return { frames: frames.map(withGaps), legend, options: panel.options ?? {} };
    }, [panel, frames]);
    return <TimeSeries structureRev={1} {...{ width, height, timeRange, timeZone, ...stable }} />;
}

const REDUCE = { values: false, calcs: ['lastNotNull'], fields: '' };

function Repeater({
    options,
    frames,
    fieldConfig,
    sparkline,
    width,
    height,
    theme,
    timeZone,
    replaceVariables,
    ...rest
}) {
    const reduceOptions = { ...REDUCE, ...options.reduceOptions };
    const percentChange = options.showPercentChange;
    const getValues = () =>
        getFieldDisplayValues({
            data: frames,
            fieldConfig,
            reduceOptions,
            sparkline,
            percentChange,
            theme,
            timeZone,
            replaceVariables,
        });
    return (
        <VizRepeater
            getValues={getValues}
            getAlignmentFactors={getDisplayValueAlignmentFactors}
            source={frames}
            renderCounter={0}
            orientation={options.orientation ?? VizOrientation.Auto}
            {...{ width, height, ...rest }}
        />
    );
}

function Stat(props) {
    const options = {
        graphMode: 'area',
        colorMode: 'value',
        justifyMode: 'auto',
        textMode: 'auto',
        ...props.panel.options,
    };
    const { graphMode, colorMode, justifyMode, textMode, text, percentChangeColorMode, wideLayout = true } = options;
    const renderValue = ({ value, width, height, alignmentFactors, count }) => (
        <BigValue
            {...{ width, height, alignmentFactors, count, graphMode, colorMode, justifyMode, textMode, text }}
            percentChangeColorMode={percentChangeColorMode}
            value={value.display}
            sparkline={value.sparkline && { ...value.sparkline, timeRange: props.timeRange }}
            theme={props.theme}
            disableWideLayout={!wideLayout}
        />
    );
    return (
        <Repeater
            {...props}
            options={options}
            sparkline={graphMode !== 'none'}
            renderValue={renderValue}
            itemSpacing={3}
            autoGrid
        />
    );
}

function Bars(props) {
    const options = {
        displayMode: 'gradient',
        showUnfilled: true,
        valueMode: 'color',
        namePlacement: 'auto',
        ...props.panel.options,
    };
    const { displayMode, showUnfilled, valueMode, namePlacement, text } = options;
    const renderValue = ({ value, width, height, alignmentFactors, orientation }) => (
        <BarGauge
            {...{ width, height, alignmentFactors, orientation, displayMode, showUnfilled, namePlacement, text }}
            valueDisplayMode={valueMode}
            value={value.display}
            field={value.field}
            display={value.view?.getFieldDisplayProcessor(value.colIndex)}
            theme={props.theme}
            itemSpacing={10}
            lcdCellWidth={12}
        />
    );
    return (
        <Repeater
            {...props}
            options={options}
            renderValue={renderValue}
            itemSpacing={10}
            minVizWidth={8}
            minVizHeight={16}
            maxVizHeight={300}
        />
    );
}

function Table({ panel, frames, fieldConfig, width, height, timeRange }) {
    return (
        <TableNG
            data={frames[0]}
            fieldConfig={fieldConfig}
            sortBy={panel.options?.sortBy}
            noHeader={panel.options?.showHeader === false}
            getActions={() => []}
            structureRev={1}
            {...{ width, height, timeRange }}
        />
    );
}

function Text({ panel, replaceVariables }) {
    const { mode = 'markdown', content = '' } = panel.options ?? {};
    const text = replaceVariables(content);
    if (mode !== 'markdown') return <pre>{text}</pre>;
    return <div className="markdown-html" dangerouslySetInnerHTML={{ __html: renderTextPanelMarkdown(text) }} />;
}

const KINDS = { timeseries: Graph, heatmap: Heatmap, stat: Stat, bargauge: Bars, table: Table };

export function Content(props) {
    const { panel, frames, width, height } = props;
    const Kind = panel.options?.calculate ? undefined : KINDS[panel.type];
    if (panel.type === 'text') return <Text {...props} />;
    if (!Kind) return <Message {...{ width, height }}>A {panel.type} of this kind is not drawn here.</Message>;
    if (!frames.length && panel.type !== 'stat') return <Message {...{ width, height }}>No data</Message>;
    return <Kind {...props} />;
}
