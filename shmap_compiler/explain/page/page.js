"use strict";

// ------------------------------------------------------------------------------------- timeline
//
// Times are in nanoseconds, lengths in CSS pixels. An event is
// [row, kind, start, duration, name, what, source]; all but the times are numbers of strings.
// A sample of memory is [start, bytes].

function timeline(article, data) {
  const AXIS = 22, GUTTER = 66, GAP = 4, DEVICE = 34, WIRE = 22, MEMORY = 56;
  const canvas = article.querySelector(".timeline canvas");
  const tip = article.querySelector(".timeline output");
  const summary = article.querySelector(".selection");
  const search = article.querySelector("[data-search]");
  const events = data.events.map(([row, kind, start, duration, name, what, source]) => ({
    row, start, duration, nameNumber: name,
    kind: data.strings[kind], name: data.strings[name],
    what: data.strings[what], source: data.strings[source],
  }));
  const rows = Math.max(...events.map((event) => event.row)) + 1;
  const tops = Array.from({ length: rows + 1 }, (_, row) =>
    AXIS + GAP + (row ? DEVICE + GAP + (row - 1) * (WIRE + GAP) : 0));
  const height = tops[rows] + (data.memory.length ? MEMORY + GAP : 0);
  const most = Math.max(data.reserved, ...data.memory.map(([, held]) => held));
  const collectiveOf = new Map(data.collectives.flatMap((names, i) => names.map((n) => [n, i])));
  const collectiveRows = [...article.querySelectorAll("[data-collective]")];
  const tableRows = [...article.querySelectorAll("[data-row]")];

  let view = { from: 0, to: data.end };
  let chosen = null;            // the event under the pointer
  let marked = null;            // the collective whose row of the table is pointed at
  let range = null;             // the selected stretch of time
  let wanted = "";              // what is searched for

  // ---- from times to places and back

  const width = () => canvas.clientWidth - GUTTER;
  const x = (time) => GUTTER + (time - view.from) / (view.to - view.from) * width();
  const time = (x) => view.from + (x - GUTTER) / width() * (view.to - view.from);
  const rowHeight = (row) => (row ? WIRE : DEVICE);
  const end = (event) => event.start + event.duration;

  function show(from, to) {
    view = { from: Math.max(0, from), to: Math.min(to, data.end) };
    select(null);
  }

  // ---- drawing

  function draw() {
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = height * scale;
    const color = colors();
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawAxis(pen, color);
    drawLanes(pen, color);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, width(), height);
    pen.clip();
    const hatch = hatching(pen, color("wait"));
    for (const event of events) drawEvent(pen, color, hatch, event);
    if (data.memory.length) drawMemory(pen, color);
    if (range) drawRange(pen, color);
    pen.restore();
    if (chosen) placeTip();
  }

  function drawAxis(pen, color) {
    const { step, text } = ticks(view, width());
    pen.textAlign = "center";
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      pen.fillStyle = color("line");
      pen.fillRect(Math.round(x(at)), AXIS - 4, 1, height - AXIS + 4);
      pen.fillStyle = color("quiet");
      const label = text(at), half = pen.measureText(label).width / 2;
      const right = canvas.clientWidth - half;
      pen.fillText(label, Math.min(Math.max(x(at), half), right), AXIS / 2 - 2);
    }
  }

  function drawLanes(pen, color) {
    pen.fillStyle = color("quiet");
    pen.textAlign = "left";
    pen.fillText("device", 0, tops[0] + DEVICE / 2);
    if (rows > 1) pen.fillText("wire", 0, tops[1] + WIRE / 2);
    if (data.memory.length) pen.fillText("memory", 0, tops[rows] + MEMORY / 2);
  }

  function drawEvent(pen, color, hatch, event) {
    const left = x(event.start), right = x(end(event));
    if (right < GUTTER || left > canvas.clientWidth) return;
    const top = tops[event.row], tall = rowHeight(event.row), wide = Math.max(right - left, 1);
    const pale = marked === null ? !matches(event) : collectiveOf.get(event.nameNumber) !== marked;
    pen.globalAlpha = pale ? 0.2 : 1;
    pen.fillStyle = event.kind === "wait" ? hatch : color(event.kind);
    // A line of paper between neighbours, unless that leaves nothing.
    pen.fillRect(left, top, wide > 3 ? wide - 1 : wide, tall);
    if (event === chosen) {
      pen.strokeStyle = color("ink");
      pen.lineWidth = 2;
      pen.strokeRect(left + 1, top + 1, Math.max(wide - 2, 1), tall - 2);
    }
    drawLabel(pen, color, event, Math.max(left, GUTTER), right, top + tall / 2);
    pen.globalAlpha = 1;
  }

  function drawLabel(pen, color, event, left, right, middle) {
    const label = shortened(pen, title(event), Math.min(right, canvas.clientWidth) - left - 16);
    if (!label) return;
    const wide = pen.measureText(label).width;
    pen.textAlign = "left";
    if (event.kind === "wait") {
      pen.fillStyle = color("paper");
      pen.fillRect(left + 4, middle - 9, wide + 8, 18);
    }
    pen.fillStyle = color(event.kind === "wait" ? "wait" : "on-bar");
    pen.fillText(label, left + (event.kind === "wait" ? 8 : 5), middle);
  }

  // What is in use, as steps, below a line for what the compiler reserves.
  function drawMemory(pen, color) {
    const bottom = tops[rows] + MEMORY, y = (held) => bottom - held / most * (MEMORY - 4);
    pen.fillStyle = color("temporaries");
    for (const [i, [start, held]] of data.memory.entries()) {
      const left = x(start), right = x(i + 1 < data.memory.length ? data.memory[i + 1][0] : data.last);
      if (right >= GUTTER && left <= canvas.clientWidth) {
        pen.fillRect(left, y(held), Math.max(right - left, 0.5) + 0.5, bottom - y(held));
      }
    }
    pen.fillStyle = color("quiet");
    pen.fillRect(GUTTER, Math.round(y(data.reserved)), x(data.last) - GUTTER, 1);
  }

  function drawRange(pen, color) {
    const left = x(range.from), right = x(range.to);
    pen.globalAlpha = 0.18;
    pen.fillStyle = color("ink");
    pen.fillRect(left, AXIS - 4, right - left, height - AXIS + 4);
    pen.globalAlpha = 1;
    for (const edge of [left, right]) pen.fillRect(Math.round(edge), AXIS - 4, 1, height);
  }

  function title(event) {
    if (event.kind === "wait") return `waits for ${event.what}`;
    return event.row ? event.what : event.name;
  }

  // ---- one event

  function choose(event) {
    chosen = event;
    const collective = event ? collectiveOf.get(event.nameNumber) : undefined;
    collectiveRows.forEach((row, i) => row.classList.toggle("marked", i === collective));
    tip.hidden = !event;
    if (event) {
      const name = document.createElement("b");
      name.textContent = event.name;
      const what = event.kind === "wait" ? title(event) : event.what;
      const begin = `begins at ${duration(event.start)}, takes ${duration(event.duration)}`;
      const lines = [[what, event.source].filter(Boolean).join(", "), begin];
      tip.replaceChildren(name, ...lines.flatMap((line) => [document.createElement("br"), line]));
    }
    draw();
  }

  // Below its event, inside the page.
  function placeTip() {
    const left = Math.max(x(chosen.start), GUTTER), room = canvas.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(left, room))}px`;
    tip.style.top = `${tops[chosen.row] + rowHeight(chosen.row) + 4}px`;
  }

  function eventAt(px, py) {
    const row = tops.findIndex((top, i) => i < rows && py >= top && py < top + rowHeight(i));
    if (row < 0 || px < GUTTER) return null;
    const slack = (view.to - view.from) / width();
    const near = (event) => event.row === row && time(px) >= event.start - slack &&
      time(px) <= event.start + Math.max(event.duration, slack);
    return events.findLast(near) ?? null;
  }

  // ---- a stretch of time

  function select(chosenRange) {
    range = chosenRange;
    const zoomed = view.from > 0 || view.to < data.end;
    const texts = range ? [`${duration(range.from)} to ${duration(range.to)}: ${inRange(range)} `] : [];
    if (range) texts.push(button("zoom in", () => show(range.from, range.to)));
    if (zoomed) texts.push(button("show all", () => show(0, data.end)));
    summary.replaceChildren(...texts);
    draw();
  }

  // What the device does in a range, how long the wire is in use, and the most memory.
  function inRange({ from, to }) {
    const inside = events.filter((event) => event.start < to && end(event) > from);
    const overlap = (event) => Math.min(end(event), to) - Math.max(event.start, from);
    const sum = (kept) => inside.filter(kept).reduce((all, event) => all + overlap(event), 0);
    const parts = [
      `computes ${duration(sum((e) => e.kind === "compute"))}`,
      `waits ${duration(sum((e) => e.kind === "wait"))}`,
      `wire in use ${duration(covered(inside.filter((e) => e.row), from, to))}`,
    ];
    const held = data.memory.filter(([start], i) =>
      start < to && (data.memory[i + 1]?.[0] ?? data.last) > from).map(([, bytes]) => bytes);
    if (held.length) parts.push(`memory at most ${size(Math.max(...held))}`);
    return `${parts.join(", ")}.`;
  }

  // ---- search

  function matches(event) {
    return !wanted || [event.name, event.what, event.source].some((text) =>
      text.toLowerCase().includes(wanted));
  }

  function find() {
    wanted = search.value.trim().toLowerCase();
    tableRows.forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
    if (wanted) article.querySelectorAll("details").forEach((each) => { each.open = true; });
    draw();
  }

  // ---- what people do

  let drag = null;
  const inside = (px) => Math.min(Math.max(time(px), view.from), view.to);
  canvas.addEventListener("pointerdown", (e) => {
    drag = e.offsetX;
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener("pointermove", (e) => {
    if (drag === null) return choose(eventAt(e.offsetX, e.offsetY));
    if (Math.abs(e.offsetX - drag) < 4) return;
    chosen = null;
    tip.hidden = true;
    const ends = [inside(drag), inside(e.offsetX)].sort((a, b) => a - b);
    select({ from: ends[0], to: ends[1] });
  });
  canvas.addEventListener("pointerup", (e) => {
    if (drag !== null && Math.abs(e.offsetX - drag) < 4) select(null);
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => choose(null));
  canvas.addEventListener("dblclick", () => show(0, data.end));
  document.addEventListener("keydown", (e) => { if (e.key === "Escape") show(0, data.end); });
  search.addEventListener("input", find);
  collectiveRows.forEach((row, i) => {
    const mark = (value) => () => { marked = value; draw(); };
    row.addEventListener("pointerenter", mark(i));
    row.addEventListener("focus", mark(i));
    row.addEventListener("pointerleave", mark(null));
    row.addEventListener("blur", mark(null));
  });

  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

function button(text, run) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", run);
  return made;
}

// How much of a range is covered by events that may overlap.
function covered(events, from, to) {
  let all = 0, until = from;
  for (const { start, duration } of [...events].sort((a, b) => a.start - b.start)) {
    const end = Math.min(start + duration, to);
    all += Math.max(0, end - Math.max(start, until));
    until = Math.max(until, end);
  }
  return all;
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

function size(bytes) {
  let unit = 0;
  for (; bytes >= 1024 && unit < SIZES.length - 1; unit += 1) bytes /= 1024;
  return `${Number(bytes.toPrecision(4))} ${SIZES[unit]}`;
}

// The colors of the style sheet, by name.
function colors() {
  const style = getComputedStyle(document.documentElement), known = new Map();
  return (name) => {
    if (!known.has(name)) known.set(name, style.getPropertyValue(`--${name}`).trim());
    return known.get(name);
  };
}

// Stripes, so that a wait is told from a collective without its colour.
function hatching(pen, color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const stripes = tile.getContext("2d");
  stripes.strokeStyle = color;
  stripes.lineWidth = 1.6;
  for (const by of [-6, 0, 6]) {
    stripes.moveTo(by - 1, 7);
    stripes.lineTo(by + 7, -1);
  }
  stripes.stroke();
  return pen.createPattern(tile, "repeat");
}

// As much of a text as fits, if that still says something.
function shortened(pen, text, wide) {
  if (pen.measureText(text).width <= wide) return text;
  if (wide < 60) return "";
  let kept = text.length;
  while (kept && pen.measureText(`${text.slice(0, kept)}\u2026`).width > wide) kept -= 1;
  return `${text.slice(0, kept)}\u2026`;
}

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
const unitOf = (time) => UNITS.find(([unit]) => time >= unit) ?? UNITS.at(-1);

function duration(time) {
  const [unit, name] = unitOf(time);
  return time ? `${Number((time / unit).toPrecision(4))} ${name}` : "0";
}

// The distance of marks on the axis, and their texts.
function ticks({ from, to }, width) {
  const least = (to - from) / Math.max(width / 110, 2);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].find((k) => k * power >= least) * power;
  const [unit, name] = unitOf(to);
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return { step, text: (at) => (at ? `${(at / unit).toFixed(digits)} ${name}` : "0") };
}

// ---------------------------------------------------------------------------------- which device holds what

function holders(section) {
  const devices = [...section.querySelectorAll("[data-device]")];
  const blocks = [...section.querySelectorAll("[data-devices]")];
  const held = new Map(blocks.map((block) => [block, block.dataset.devices.split(" ")]));
  let kept = null;

  function showDevice(device) {
    devices.forEach((each) => each.classList.toggle("held", each.dataset.device === device));
    blocks.forEach((block) => block.classList.toggle("held", held.get(block).includes(device)));
  }

  function showBlock(block) {
    blocks.forEach((each) => each.classList.toggle("held", each === block));
    devices.forEach((each) =>
      each.classList.toggle("held", held.get(block).includes(each.dataset.device)));
  }

  function point(target) {
    const device = target.closest("[data-device]"), block = target.closest("[data-devices]");
    if (device) showDevice(device.dataset.device);
    else if (block) showBlock(block);
    else showDevice(kept);
  }

  section.addEventListener("pointerover", (e) => point(e.target));
  section.addEventListener("pointerleave", () => showDevice(kept));
  section.addEventListener("focusin", (e) => point(e.target));
  section.addEventListener("focusout", () => showDevice(kept));
  devices.forEach((each) => each.addEventListener("click", () => {
    kept = kept === each.dataset.device ? null : each.dataset.device;
    devices.forEach((other) =>
      other.setAttribute("aria-pressed", String(other.dataset.device === kept)));
  }));
}

document.querySelectorAll("article").forEach((article) => {
  const recorded = article.querySelector("script");
  if (recorded) timeline(article, JSON.parse(recorded.textContent));
  holders(article.querySelector(".holders"));
});
