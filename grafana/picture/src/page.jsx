// The page: a dashboard's panels at their places.

import {
    createTheme,
    dateTime,
    standardTransformers,
    standardTransformersRegistry,
    transformDataFrame,
} from '@grafana/data';
import { GlobalStyles, Icon, PanelChrome, ThemeContext } from '@grafana/ui';
import { flushSync } from 'react-dom';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';

import { fieldConfigOf, framesOf, variablesOf, withFieldConfig } from './frames';
import { layOut } from './layout';
import { Content } from './panels';
import './page.css';

const CAPTION =
    "Drawn with Grafana's components (@grafana/ui) from a test run's Prometheus data; " +
    'not a screenshot of a Grafana server.';
const PADDING = 16;

// Some are listed under two names.
const transformers = new Map(Object.values(standardTransformers).map((transformer) => [transformer.id, transformer]));
standardTransformersRegistry.setInit(() =>
    [...transformers].map(([id, transformer]) => ({
        id,
        name: transformer.name,
        transformation: async () => transformer,
    })),
);

function Picture({ title, boxes, height, context }) {
    return (
        <main style={{ padding: PADDING }}>
            <h1>{title}</h1>
            <div style={{ position: 'relative', height }}>
                {boxes.map(({ panel, frames, fieldConfig, left, top, ...size }) => (
                    <div key={`${panel.type} ${panel.id}`} style={{ position: 'absolute', left, top, ...size }}>
                        {panel.type === 'row' ? (
                            <h2>
                                <Icon name="angle-down" /> {context.replaceVariables(panel.title ?? '')}
                            </h2>
                        ) : (
                            <PanelChrome
                                {...size}
                                title={context.replaceVariables(panel.title ?? '')}
                                description={panel.description}
                                displayMode={panel.transparent ? 'transparent' : 'default'}
                                padding={panel.type === 'table' ? 'none' : 'md'}
                            >
                                {(width, height) => (
                                    <Content {...{ panel, frames, fieldConfig, width, height, ...context }} />
                                )}
                            </PanelChrome>
                        )}
                    </div>
                ))}
            </div>
            <p>{CAPTION}</p>
        </main>
    );
}

async function prepared(box, data, context) {
    const { panel } = box;
    if (panel.type === 'row') return box;
    const fieldConfig = fieldConfigOf(panel);
    const transformations = (panel.transformations ?? []).filter(({ disabled }) => !disabled);
    const frames = await lastValueFrom(transformDataFrame(transformations, framesOf(panel, data)));
    return { ...box, fieldConfig, frames: withFieldConfig(frames, fieldConfig, context) };
}

window.drawPicture = async ({ dashboard, data, panels }) => {
    const theme = createTheme({ colors: { mode: 'dark' } });
    const [from, to] = [data.from, data.to].map((seconds) => dateTime(seconds * 1000));
    const context = {
        theme,
        timeZone: dashboard.timezone || 'browser',
        timeRange: { from, to, raw: { from, to } },
        step: data.step,
        replaceVariables: variablesOf(dashboard),
    };
    const { boxes, height } = layOut(dashboard, panels, document.documentElement.clientWidth - 2 * PADDING);
    const ready = await Promise.all(boxes.map((box) => prepared(box, data, context)));
    const root = createRoot(document.getElementById('picture'));
    const render = (content) =>
        flushSync(() =>
            root.render(
                <ThemeContext.Provider value={theme}>
                    <GlobalStyles />
                    {content}
                </ThemeContext.Provider>,
            ),
        );
    // Texts are measured when the panels are drawn, so the fonts that the global styles name must be loaded before.
    render(null);
    await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`)));
    render(<Picture title={dashboard.title} boxes={ready} height={height} context={context} />);
};
