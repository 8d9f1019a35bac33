"use strict";

// ------------------------------------------------------------------------------------- timeline
//
// Times are in nanoseconds, lengths in CSS pixels. An event is
// [row, kind, start, duration, name, what, source]; all but the times are numbers of strings.

function timeline(canvas, tip, data) {
  const AXIS = 22, GUTTER = 66, GAP = 4, DEVICE = 34, WIRE = 22;
  const events = data.events.map(([row, kind, start, duration, name, what, source]) => ({
    row, start, duration, nameNumber: name,
    kind: data.strings[kind], name: data.strings[name],
    what: data.strings[what], source: data.strings[source],
  }));
  const rows = Math.max(...events.map((event) => event.row)) + 1;
  const tops = Array.from({ length: rows + 1 }, (_, row) =>
    AXIS + GAP + (row ? DEVICE + GAP + (row - 1) * (WIRE + GAP) : 0));
  const height = tops[rows];
  const collectiveOf = new Map(data.collectives.flatMap((names, i) => names.map((n) => [n, i])));
  const tableRows = [...document.querySelectorAll("[data-collective]")];

  let view = { from: 0, to: data.end };
  let chosen = null;            // the event under the pointer or reached by keys
  let marked = null;            // the collective whose row of the table is pointed at

  // ---- from times to places and back

  const width = () => canvas.clientWidth - GUTTER;
  const x = (time) => GUTTER + (time - view.from) / (view.to - view.from) * width();
  const time = (x) => view.from + (x - GUTTER) / width() * (view.to - view.from);
  const rowHeight = (row) => (row ? WIRE : DEVICE);

  function show(from, to) {
    const length = Math.min(Math.max(to - from, 1), data.end);
    const first = Math.min(Math.max(from, 0), data.end - length);
    view = { from: first, to: first + length };
    draw();
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    show(around - (around - view.from) * factor, around + (view.to - around) * factor);
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
  }

  function drawEvent(pen, color, hatch, event) {
    const left = x(event.start), right = x(event.start + event.duration);
    if (right < GUTTER || left > canvas.clientWidth) return;
    const top = tops[event.row], tall = rowHeight(event.row), wide = Math.max(right - left, 1);
    pen.globalAlpha = marked === null || collectiveOf.get(event.nameNumber) === marked ? 1 : 0.2;
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

  function title(event) {
    if (event.kind === "wait") return `waits for ${event.what}`;
    return event.row ? event.what : event.name;
  }

  // ---- one event

  function choose(event) {
    chosen = event;
    const collective = event ? collectiveOf.get(event.nameNumber) : undefined;
    tableRows.forEach((row, i) => row.classList.toggle("marked", i === collective));
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
    const left = Math.max(x(chosen.start), GUTTER), most = canvas.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(left, most))}px`;
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

  function reveal(event) {
    if (!event) return;
    const length = view.to - view.from, end = event.start + event.duration;
    if (event.start < view.from || end > view.to) {
      show(event.start + event.duration / 2 - length / 2, event.start + event.duration / 2 + length / 2);
    }
    choose(event);
  }

  function step(along, down) {
    if (!chosen) return reveal(events[0]);
    if (along) {
      const next = events[events.indexOf(chosen) + along];
      return next?.row === chosen.row ? reveal(next) : undefined;
    }
    const away = (event) => Math.abs(event.start - chosen.start);
    const there = events.filter((event) => event.row === chosen.row + down);
    if (there.length) reveal(there.reduce((a, b) => (away(b) < away(a) ? b : a)));
  }

  // ---- what people do

  let drag = null;
  canvas.addEventListener("pointerdown", (e) => {
    drag = { x: e.offsetX, view };
    canvas.setPointerCapture(e.pointerId);
  });
  canvas.addEventListener("pointermove", (e) => {
    if (!drag) return choose(eventAt(e.offsetX, e.offsetY));
    const by = (drag.x - e.offsetX) / width() * (drag.view.to - drag.view.from);
    if (chosen) choose(null);
    show(drag.view.from + by, drag.view.to + by);
  });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => choose(null));
  canvas.addEventListener("blur", () => choose(null));
  canvas.addEventListener("dblclick", (e) => {
    const event = eventAt(e.offsetX, e.offsetY);
    if (event) show(event.start - event.duration * 0.05, event.start + event.duration * 1.05);
  });
  canvas.addEventListener("wheel", (e) => {
    const sideways = e.deltaX || (e.shiftKey ? e.deltaY : 0);
    if (!e.ctrlKey && !sideways) return;              // The page scrolls.
    e.preventDefault();
    const by = sideways / width() * (view.to - view.from);
    if (e.ctrlKey) zoom(Math.exp(e.deltaY * 0.004), time(e.offsetX));
    else show(view.from + by, view.to + by);
    choose(eventAt(e.offsetX, e.offsetY));
  }, { passive: false });

  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), all: () => show(0, data.end),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => show(0, data.end),
    ArrowRight: () => step(1, 0), ArrowLeft: () => step(-1, 0),
    ArrowDown: () => step(0, 1), ArrowUp: () => step(0, -1), Escape: () => choose(null),
  };
  canvas.addEventListener("keydown", (e) => {
    if (!Object.hasOwn(actions, e.key) || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    actions[e.key]();
  });
  document.querySelectorAll("[data-zoom]").forEach((button) =>
    button.addEventListener("click", () => actions[button.dataset.zoom]()));
  tableRows.forEach((row, i) => {
    const mark = (value) => () => { marked = value; draw(); };
    row.addEventListener("pointerenter", mark(i));
    row.addEventListener("focus", mark(i));
    row.addEventListener("pointerleave", mark(null));
    row.addEventListener("blur", mark(null));
  });

  new ResizeObserver(draw).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// The colours of the style sheet, by name.
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

// ---------------------------------------------------------------------------------- who holds what

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

const recorded = document.getElementById("events");
if (recorded) {
  const canvas = document.querySelector(".timeline canvas");
  timeline(canvas, document.querySelector(".timeline output"), JSON.parse(recorded.textContent));
}
holders(document.querySelector(".holders"));
