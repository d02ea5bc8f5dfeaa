// Draws panels of a Grafana dashboard into a PNG, with Grafana's own components in a headless Chromium.

import { readFile, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import { parseArgs } from 'node:util';

import chromium from '@sparticuz/chromium';
import { build } from 'esbuild';
import puppeteer from 'puppeteer-core';
import sharp from 'sharp';

const USAGE = `usage: draw.mjs [--panels ID,ID,...] [--width PIXELS] [--scale FACTOR] DASHBOARD.json DATA.json OUT.png
Without --panels, the first 10 panels are drawn.`;
// The address of the page. No server has it: this program answers each request of Chromium.
const ORIGIN = 'http://picture.invalid/';
const HTML = `<!doctype html><html lang="en"><meta charset="utf-8"><link rel="stylesheet" href="page.css">
<body><div id="picture"></div><script src="page.js"></script></body></html>`;

const require = createRequire(import.meta.url);
const ICONS = path.resolve(path.dirname(require.resolve('@grafana/ui/package.json')), 'dist/public/img/icons');
const font = (weight) => require.resolve(`@fontsource/inter/files/inter-latin-${weight}-normal.woff2`);
const FONTS = { 'Inter-Regular.woff2': font(400), 'Inter-Medium.woff2': font(500) };

function readArguments() {
    try {
        const { values, positionals } = parseArgs({
            allowPositionals: true,
            options: {
                panels: { type: 'string' },
                width: { type: 'string', default: '1400' },
                scale: { type: 'string', default: '1.5' },
            },
        });
        if (positionals.length !== 3) throw new Error('three files are needed');
        const [dashboard, data, out] = positionals;
        const numbers = { width: Number(values.width), scale: Number(values.scale) };
        for (const [name, number] of Object.entries(numbers)) {
            if (!(number > 0)) throw new Error(`--${name} must be a number above 0`);
        }
        return { dashboard, data, out, panels: values.panels?.split(',').map(Number), ...numbers };
    } catch (error) {
        console.error(`${error.message}\n${USAGE}`);
        process.exit(2);
    }
}

async function bundle() {
    const { outputFiles } = await build({
        entryPoints: [path.resolve(import.meta.dirname, 'src/page.jsx')],
        outdir: 'out',
        write: false,
        bundle: true,
        minify: true,
        format: 'iife',
        target: 'chrome140',
        jsx: 'automatic',
        loader: { '.svg': 'dataurl', '.ttf': 'dataurl' },
        // Otherwise React would be the development build, which prints warnings about Grafana's own code.
        define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
        logLevel: 'error',
    });
    return Object.fromEntries(outputFiles.map((file) => [path.extname(file.path), file.text]));
}

// What a Grafana server would serve: here the page, and the icons and fonts that Grafana's components ask for.
async function served(url, files) {
    if (url === ORIGIN) return { contentType: 'text/html', body: HTML };
    if (url === `${ORIGIN}page.js`) return { contentType: 'text/javascript', body: files['.js'] };
    if (url === `${ORIGIN}page.css`) return { contentType: 'text/css', body: files['.css'] };
    const icon = url.split('/img/icons/')[1];
    if (icon) return { contentType: 'image/svg+xml', body: await readFile(path.join(ICONS, icon)) };
    return { contentType: 'font/woff2', body: await readFile(FONTS[path.basename(url)]) };
}

async function answer(request, files) {
    if (request.url().startsWith('data:')) return request.continue();
    const response = await served(request.url(), files).catch(() => null);
    return response ? request.respond(response) : request.abort();
}

async function draw({ dashboard, data, panels, width, scale }) {
    const files = await bundle();
    const browser = await puppeteer.launch({
        executablePath: await chromium.executablePath(),
        args: chromium.args,
        headless: 'shell',
        defaultViewport: { width, height: 1000, deviceScaleFactor: scale },
        // The same picture on every machine: times in UTC, and dates as Grafana writes them in English.
        env: { ...process.env, TZ: 'UTC', LC_ALL: 'en_US.UTF-8' },
    });
    try {
        const page = await browser.newPage();
        const errors = [];
        page.on('pageerror', (error) => errors.push(error.message));
        await page.setRequestInterception(true);
        page.on('request', (request) => answer(request, files));
        await page.goto(ORIGIN);
        const input = { dashboard, data, panels };
        await page.evaluate((given) => window.drawPicture(given).catch(reportError), input);
        // Icons appear late, and so do panels that measure themselves before they draw.
        await page.waitForNetworkIdle({ idleTime: 250 });
        if (errors.length) throw new Error(errors[0]);
        await page.waitForFunction(() => !document.querySelector('#picture svg:empty'), { timeout: 5000 });
        const picture = await page.$('#picture');
        return await picture.screenshot({ type: 'png' });
    } finally {
        await browser.close();
    }
}

const { dashboard, data, out, ...rest } = readArguments();
try {
    const [dashboardRead, dataRead] = await Promise.all(
        [dashboard, data].map(async (name) => JSON.parse(await readFile(name, 'utf8'))),
    );
    const picture = await draw({ dashboard: dashboardRead, data: dataRead, ...rest });
    // A palette of 256 colours makes the file a third of the size.
    const png = await sharp(picture).png({ palette: true, effort: 10 }).toBuffer();
    await writeFile(out, png);
    console.log(`${out}: ${Math.round(png.length / 1000)} kB`);
} catch (error) {
    console.error(`${out} is not drawn: ${error.message}`);
    process.exitCode = 1;
}
