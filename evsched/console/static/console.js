// The script of the console: keeps an open page up to date, and gives it keys. Without it, every page is complete.
"use strict";

const $ = (choice, under = document) => under.querySelector(choice);
const all = (choice, under = document) => [...under.querySelectorAll(choice)];

// Live: one stream for this address, while the page is visible and not frozen.

const stream = document.body.dataset.stream;
const mark = $("#live");
const freeze = $("#freeze");
let source = null;
let frozen = false;
let held = new Map(); // Regions that have changed while somebody uses them.

function label(text, kind) {
  mark.hidden = false;
  mark.textContent = text;
  mark.className = "s " + kind;
}

function inUse(region) {
  const active = document.activeElement;
  const selection = getSelection();
  return (
    (active && active !== document.body && region.contains(active) && active.matches("input, select, textarea")) ||
    $("input:checked", region) !== null ||
    (!selection.isCollapsed && region.contains(selection.anchorNode))
  );
}

function replace(name, html) {
  const region = $(`[data-live="${CSS.escape(name)}"]`);
  if (!region) return;
  if (inUse(region)) {
    held.set(name, html);
    label("Changed: reload to see", "warn");
    return;
  }
  held.delete(name);
  const focused = region.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const parsed = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
  if (!parsed) return;
  const nameOf = (details) => details.dataset.key ?? $("summary", details)?.textContent;
  const opened = all("details[open]", region).map(nameOf);
  for (const details of all("details", parsed)) {
    if (opened.includes(nameOf(details))) details.open = true;
  }
  keepOrder(region, parsed);
  const places = all(".scroll", region).map((box) => [box.scrollLeft, box.scrollTop]);
  region.replaceWith(parsed);
  all(".scroll", parsed).forEach((box, at) => places[at] && box.scrollTo(...places[at]));
  if (focused) $(`[href="${CSS.escape(focused)}"]`, parsed)?.focus();
}

// Rows keep their places while somebody looks: the order of the server is that of the next load. New rows come last.
function keepOrder(old, parsed) {
  const places = new Map(all("[data-row]", old).map((row, at) => [row.dataset.row, at]));
  const rows = all("[data-row]", parsed);
  if (!rows.length || !parsed.querySelector("[data-stable]") && !parsed.matches("[data-stable]")) return;
  const place = (row) => places.get(row.dataset.row) ?? places.size;
  rows[0].parentElement.append(...rows.sort((one, other) => place(one) - place(other)));
}

function open() {
  if (!stream || source || frozen || document.hidden) return;
  source = new EventSource(stream);
  source.addEventListener("region", (event) => {
    const { name, html } = JSON.parse(event.data);
    replace(name, html);
  });
  source.addEventListener("read", (event) => {
    if (!held.size) label("Live", "run");
    const at = new Date(Number(event.data));
    const zone = $("#read time");
    if (zone) {
      zone.textContent = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", timeZone: document.body.dataset.zone }).format(at);
      zone.dateTime = at.toISOString();
    }
  });
  source.addEventListener("problem", (event) => label(`Not live: ${event.data}`, "bad"));
  source.addEventListener("ended", () => {
    close();
    label("Signed out: load the page again", "bad");
  });
  source.onerror = () => label("Not live", "bad");
}

function close() {
  source?.close();
  source = null;
}

if (stream) {
  freeze.textContent = "Freeze";
  freeze.addEventListener("click", (event) => {
    event.preventDefault();
    frozen = !frozen;
    freeze.textContent = frozen ? "Go live" : "Freeze";
    frozen ? (close(), label("Frozen", "hold")) : open();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}

// A drawing that does not fit begins where something runs, or has failed.
for (const canvas of all(".canvas")) {
  const box = $("rect.bad", canvas) ?? $("rect.run", canvas);
  if (!box) continue;
  const { x, y, width, height } = box.getBBox();
  canvas.scrollTo(x + (width - canvas.clientWidth) / 2, y + (height - canvas.clientHeight) / 2);
}

// Ages count on by themselves.

function length(seconds) {
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const two = (n) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${two(Math.floor((whole % 3600) / 60))}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor((whole % 86400) / 3600)}h`;
}

setInterval(() => {
  if (frozen || document.hidden) return;
  for (const time of all("time.age")) {
    const passed = (Date.now() - new Date(time.dateTime)) / 1000;
    time.textContent = passed >= 0 ? `${length(passed)} ago` : `in ${length(-passed)}`;
  }
}, 1000);

// Search: the links below the box add a qualifier to it; they follow what is typed.

const box = $(".find input");
const completions = $(".complete");
let asked = 0;

function complete(text) {
  box.value = text;
  box.focus();
  suggest();
}

async function suggest() {
  const number = ++asked;
  const answer = await fetch(`${completions.dataset.from}?q=${encodeURIComponent(box.value)}`).catch(() => null);
  if (!answer?.ok || number !== asked) return;
  completions.replaceChildren(
    ...(await answer.json()).map(([text, what]) => {
      const link = document.createElement("a");
      link.href = `${box.form.getAttribute("action")}?q=${encodeURIComponent(text)}`;
      link.dataset.text = text;
      link.textContent = text;
      const said = document.createElement("span");
      said.className = "soft";
      said.textContent = what;
      link.append(" ", said);
      const item = document.createElement("li");
      item.append(link);
      return item;
    }),
  );
}

completions?.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || !link.dataset.text || link.dataset.text.endsWith(" ")) return;
  event.preventDefault();
  complete(link.dataset.text);
});
box?.addEventListener("focus", suggest, { once: true });
box?.addEventListener("input", suggest);
box?.addEventListener("keydown", (event) => {
  const first = $("a", completions);
  if (event.key === "ArrowDown" && first) {
    event.preventDefault();
    first.focus();
  }
});
completions?.addEventListener("keydown", (event) => {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  event.preventDefault();
  event.stopPropagation();
  const links = all("a", completions);
  const at = links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
  at < 0 ? box.focus() : links[Math.min(at, links.length - 1)].focus();
});

// Rows: choose all, choose a range, and how many are chosen.

function count() {
  const chosen = all("td.tick input[name=job]").filter((box) => box.checked);
  for (const row of all("tbody tr")) row.classList.toggle("sel", $("input[name=job]", row)?.checked ?? false);
  const said = $("#chosen");
  if (said) said.textContent = chosen.length ? `${chosen.length} chosen` : "Choose jobs";
}

const every = $("input.all");
if (every) {
  every.hidden = false;
  every.addEventListener("change", () => {
    for (const box of all("td.tick input[name=job]")) box.checked = every.checked;
    count();
  });
  let last = null;
  document.addEventListener("click", (event) => {
    const boxes = all("td.tick input[name=job]");
    const at = boxes.indexOf(event.target);
    if (at < 0) return;
    if (event.shiftKey && last !== null) {
      for (let i = Math.min(at, last); i <= Math.max(at, last); i++) boxes[i].checked = event.target.checked;
    }
    last = at;
    count();
  });
  count();
}

// A search that is not over goes on by itself for half a minute, and its link stays for the rest. What it has found is
// kept, and more is added. Parts that somebody uses stay as they are.

const SEARCH_ON = 30000;

async function searchOn() {
  let link = $("a[data-on]");
  if (!link) return;
  const end = Date.now() + SEARCH_ON;
  const said = document.createElement("p");
  const stop = document.createElement("button");
  let stopped = false;
  said.setAttribute("role", "status");
  said.append("Searching on… ", stop);
  stop.textContent = "Stop";
  stop.addEventListener("click", () => (stopped = true));
  link.closest("[data-part]").after(said);
  while (link && !stopped && Date.now() < end) {
    link.hidden = true;
    const answer = await fetch(link.href).catch(() => null);
    const page = answer?.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
    for (const part of page ? all("[data-part]", page) : []) {
      const old = $(`[data-part="${part.dataset.part}"]`);
      if (!old || inUse(old)) continue;
      const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      old.replaceWith(part);
      if (focused) $(`[href="${CSS.escape(focused)}"]`, part)?.focus();
    }
    count();
    const next = $("a[data-on]");
    if (next === link) break;
    link = next;
  }
  if (link) link.hidden = false;
  said.remove();
}

searchOn();

// Cancel: back to the page with the button that led here, as it was.

for (const link of all("a[data-back]")) {
  link.addEventListener("click", (event) => {
    const before = document.referrer;
    if (history.length < 2 || !before.startsWith(location.origin) || before.startsWith(location.origin + location.pathname)) return;
    event.preventDefault();
    history.back();
  });
}

// Keys. Letters work only outside of fields, and can be switched off (WCAG 2.1.4).

const letters = $("#letters");
if (letters) {
  letters.checked = localStorage.getItem("letters") !== "off";
  letters.addEventListener("change", () => localStorage.setItem("letters", letters.checked ? "on" : "off"));
}

let current = -1;
function move(by) {
  const rows = all("main tbody tr").filter((row) => $("a", row));
  if (!rows.length) return;
  current = Math.max(0, Math.min(rows.length - 1, current + by));
  $("a", rows[current]).focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const field = event.target.matches?.("input:not([type=checkbox]), select, textarea");
  if (event.key === "Escape") event.target.blur?.();
  if (field) return;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    return move(event.key === "ArrowDown" ? 1 : -1);
  }
  if (letters && !letters.checked) return;
  if (event.key === "/") {
    event.preventDefault();
    return box?.focus();
  }
  if (event.key === "?") return $("#keys")?.showModal();
  if (event.key === "x") {
    const tick = $("input[name=job]", event.target.closest?.("tr") ?? document.createElement("tr"));
    if (tick) {
      tick.checked = !tick.checked;
      return count();
    }
  }
  const link = $(`nav [data-key="${CSS.escape(event.key)}"]`);
  if (link) location.href = link.href;
});
