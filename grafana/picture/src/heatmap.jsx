// A heatmap of a histogram's buckets. @grafana/ui has no heatmap: its UPlotChart draws the axes and the grid, and the
// cells and the legend are drawn here, in Grafana's colours.

import { formattedValueToString, getDisplayProcessor, getFieldDisplayName } from '@grafana/data';
import { UPlotChart, UPlotConfigBuilder, VizLayout } from '@grafana/ui';
import * as schemes from 'd3-scale-chromatic';

const OPTIONS = { cellGap: 1, filterValues: { le: 1e-9 }, legend: { show: true } };
const COLOR = { mode: 'scheme', scheme: 'Oranges', fill: 'dark-orange', exponent: 0.5, steps: 64, reverse: false };
// On a dark background, Grafana inverts all colour schemes but these, so that high counts are bright or warm.
const DARK_TO_BRIGHT = new Set([
    'Turbo',
    'Cividis',
    'Viridis',
    'Magma',
    'Inferno',
    'Plasma',
    'Warm',
    'Cool',
    'Cubehelix',
]);

function paletteOf(color, theme) {
    const parts = Array.from({ length: color.steps }, (_, i) => i / (color.steps - 1));
    if (color.mode === 'opacity') {
        const fill = theme.visualization.getColorByName(color.fill);
        const exponent = color.scale === 'linear' ? 1 : color.exponent;
        return parts.map((part) => `color-mix(in srgb, ${fill} ${part ** exponent * 100}%, transparent)`);
    }
    const name = color.scheme === 'Cubehelix' ? 'CubehelixDefault' : color.scheme;
    const palette = parts.map(schemes[`interpolate${name}`] ?? schemes.interpolateSpectral);
    return DARK_TO_BRIGHT.has(color.scheme) === color.reverse ? palette.reverse() : palette;
}

// A bucket of Prometheus includes all smaller buckets. Each is drawn without them.
function bucketsOf(frames) {
    const buckets = frames
        .map((frame) => {
            const [time, value] = frame.fields;
            const name = value.labels?.le ?? getFieldDisplayName(value, frame, frames);
            const counts = new Map(time.values.map((ts, i) => [ts, value.values[i]]));
            return { name, le: name === '+Inf' ? Infinity : Number(name), counts };
        })
        .toSorted((a, b) => a.le - b.le);
    return buckets.map(({ name, le, counts }, i) => {
        const below = buckets[i - 1]?.counts;
        const own = [...counts].map(([ts, count]) => [ts, Math.max(0, count - (below?.get(ts) ?? 0))]);
        return { name, le, cells: own };
    });
}

function chartConfig({ buckets, fillOf, step, cellGap, yAxis, theme, timeZone, timeRange }) {
    const builder = new UPlotConfigBuilder(timeZone);
    builder.addScale({
        scaleKey: 'x',
        isTime: true,
        orientation: 0,
        direction: 1,
        range: () => [timeRange.from.valueOf(), timeRange.to.valueOf()],
    });
    builder.addScale({
        scaleKey: 'y',
        orientation: 1,
        direction: yAxis.reverse ? -1 : 1,
        range: () => [0, buckets.length],
    });
    builder.addAxis({ scaleKey: 'x', isTime: true, placement: 'bottom', theme, timeZone });
    const display = getDisplayProcessor({ field: { type: 'number', config: yAxis }, theme, timeZone });
    const nameOf = ({ name, le }) => (Number.isFinite(le) && yAxis.unit ? formattedValueToString(display(le)) : name);
    builder.addAxis({
        scaleKey: 'y',
        placement: 'left',
        label: yAxis.axisLabel,
        theme,
        // All buckets are equally high, and each has its bound at its top.
        splits: (u) => {
            const every = Math.ceil((buckets.length * 13 * devicePixelRatio) / u.bbox.height);
            return Array.from({ length: buckets.length + 1 }, (_, i) => i).filter((i) => i % every === 0);
        },
        values: (_, splits) => splits.map((i) => (i ? nameOf(buckets[i - 1]) : '')),
    });
    builder.addSeries({
        scaleKey: 'y',
        pathBuilder: () => null,
        pointsBuilder: () => undefined,
        showPoints: 'never',
        theme,
    });
    builder.addHook('draw', (u) => {
        const { ctx, bbox } = u;
        const pixels = cellGap * devicePixelRatio;
        // Over a long range the cells are narrow, and gaps between them would be most of the picture.
        const width = u.valToPos(step, 'x', true) - u.valToPos(0, 'x', true);
        const [gapX, gapY] = [width < 4 * pixels ? 0 : Math.round(pixels), Math.round(pixels)];
        ctx.save();
        ctx.beginPath();
        ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
        ctx.clip();
        buckets.forEach(({ cells }, i) => {
            const edges = [u.valToPos(i, 'y', true), u.valToPos(i + 1, 'y', true)].map(Math.round);
            const [top, bottom] = [Math.min(...edges), Math.max(...edges)];
            for (const [ts, count] of cells) {
                const fill = fillOf(count);
                if (!fill) continue;
                // A sample is about the step before it.
                const left = Math.round(u.valToPos(ts - step, 'x', true));
                const right = Math.round(u.valToPos(ts, 'x', true));
                ctx.fillStyle = fill;
                ctx.fillRect(left, top, Math.max(1, right - left - gapX), Math.max(1, bottom - top - gapY));
            }
        });
        ctx.restore();
    });
    return builder;
}

function ColorScale({ palette, min, max, display, theme }) {
    const end = (value) => formattedValueToString(display(value));
    return (
        <div style={{ width: 240, paddingTop: 6, ...theme.typography.bodySmall }}>
            <div style={{ height: 8, background: `linear-gradient(90deg, ${palette.join()})` }} />
            <div style={{ display: 'flex', justifyContent: 'space-between' }}>
                <span>{end(min)}</span>
                <span>{end(max)}</span>
            </div>
        </div>
    );
}

export function Heatmap({ panel, frames, step, width, height, theme, timeZone, timeRange }) {
    const options = { ...OPTIONS, ...panel.options };
    const color = { ...COLOR, ...options.color };
    const buckets = bucketsOf(frames);
    const { le: low = -Infinity, ge: high = Infinity } = options.filterValues;
    const isShown = (count) => count > low && count < high;
    const counts = buckets.flatMap(({ cells }) => cells.map(([, count]) => count)).filter(isShown);
    const min = color.min ?? counts.reduce((a, b) => Math.min(a, b), Infinity);
    const max = color.max ?? counts.reduce((a, b) => Math.max(a, b), -Infinity);
    const palette = paletteOf(color, theme);
    const fillOf = (count) => {
        if (!isShown(count)) return null;
        const part = max > min ? (count - min) / (max - min) : 1;
        return palette[Math.round(Math.min(Math.max(part, 0), 1) * (palette.length - 1))];
    };
    const chart = chartConfig({
        buckets,
        fillOf,
        step: step * 1000,
        cellGap: options.cellGap,
        yAxis: options.yAxis ?? {},
        theme,
        timeZone,
        timeRange,
    });
    // The chart needs a series; the hook draws the cells.
    const times = frames[0].fields[0].values;
    const data = [times, times.map(() => null)];
    // Without the panel's unit, as Grafana's heatmap has none either.
    const config = { ...options.cellValues };
    const display = getDisplayProcessor({ field: { type: 'number', config }, theme, timeZone });
    const legend = options.legend.show && counts.length > 0 && (
        <VizLayout.Legend placement="bottom" maxHeight="20%">
            <ColorScale {...{ palette, min, max, display, theme }} />
        </VizLayout.Legend>
    );
    return (
        <VizLayout width={width} height={height} legend={legend || null}>
            {(chartWidth, chartHeight) => (
                <UPlotChart config={chart} data={data} width={chartWidth} height={chartHeight} />
            )}
        </VizLayout>
    );
}
