// Which panels are drawn, and where. Grafana's grid: 24 columns, rows of 30 px, 8 px between.

const COLUMNS = 24;
const ROW_HEIGHT = 30;
const GAP = 8;
const FIRST = 10;

const byPlace = (a, b) => a.gridPos.y - b.gridPos.y || a.gridPos.x - b.gridPos.x;

// A collapsed row contains its panels; an open row is followed by them. Here every row is open.
function inOrder(dashboard) {
    return dashboard.panels
        .toSorted(byPlace)
        .flatMap((panel) => (panel.type === 'row' ? [panel, ...(panel.panels ?? []).toSorted(byPlace)] : [panel]));
}

function chosen(dashboard, ids) {
    const all = inOrder(dashboard);
    const panels = all.filter((panel) => panel.type !== 'row');
    const missing = ids?.filter((id) => !panels.some((panel) => panel.id === id));
    if (missing?.length) throw new Error(`no panel has the id ${missing.join(', ')}`);
    const wanted = new Set(ids ? panels.filter((panel) => ids.includes(panel.id)) : panels.slice(0, FIRST));
    // A row's title is drawn if one of its panels is.
    return all.filter((panel, i) => {
        if (panel.type !== 'row') return wanted.has(panel);
        const next = all.findIndex((other, j) => j > i && other.type === 'row');
        return all.slice(i + 1, next === -1 ? undefined : next).some((other) => wanted.has(other));
    });
}

// Each panel moves up until it touches another one, as in Grafana. This closes the gaps of panels that are not drawn.
export function layOut(dashboard, ids, width) {
    const column = (width - (COLUMNS - 1) * GAP) / COLUMNS;
    const bottoms = Array(COLUMNS).fill(0);
    const boxes = chosen(dashboard, ids).map((panel) => {
        const { x, w, h } = panel.type === 'row' ? { x: 0, w: COLUMNS, h: 1 } : panel.gridPos;
        const y = Math.max(...bottoms.slice(x, x + w));
        bottoms.fill(y + h, x, x + w);
        return {
            panel,
            left: Math.round(x * (column + GAP)),
            top: y * (ROW_HEIGHT + GAP),
            width: Math.round(w * column + (w - 1) * GAP),
            height: h * ROW_HEIGHT + (h - 1) * GAP,
        };
    });
    return { boxes, height: Math.max(...bottoms) * (ROW_HEIGHT + GAP) - GAP };
}
