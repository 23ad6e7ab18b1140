"use strict";

// Lines over steps as SVG, coloured by CSS variables, so that a change of theme needs no redrawing.

const EDGE = { top: 10, right: 14, bottom: 24 };

function svg(name, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

// A number as people write it: "percent", "si" (12.5k), "power" (3e-4) or "number"; at most `digits` significant digits.
function tell(value, format, digits = 4) {
  const round = (number) => Number(number.toPrecision(digits));
  if (format === "percent") return `${round(100 * value)}%`;
  const size = Math.abs(value);
  if (format === "si" && size >= 1000) {
    const power = Math.min(5, Math.floor(Math.log10(size) / 3));
    return `${round(value / 1000 ** power)}${" kMGTP"[power]}`;
  }
  if (size > 0 && (format === "power" || size < 1e-3 || size >= 1e6)) return round(value).toExponential().replace("e+", "e");
  return round(value).toLocaleString("en", { maximumSignificantDigits: digits });
}

function linearTicks(low, high, count, smallest = 0) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const gap = Math.max(smallest, power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999));
  const ticks = [];
  for (let index = Math.ceil(low / gap - 1e-6); index * gap <= high + 1e-6 * gap; index++) {
    ticks.push(Number((index * gap).toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low), every = Math.ceil(decades / count);
  if (decades < 0.8) return linearTicks(low, high, count);
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += every) {
    ticks.push(...(decades < 3 ? [1, 2, 5] : [1]).map((each) => Number((each * 10 ** power).toPrecision(12))));
  }
  return ticks.filter((tick) => tick >= low && tick <= high);
}

// [lowest, highest] of what the lines show between two steps, with some air; null where they show nothing.
function extent(lines, [from, to], log) {
  let low = Infinity, high = -Infinity;
  for (const { x, y } of lines) {
    for (let index = 0; index < x.length; index++) {
      const value = y[index];
      if (x[index] < from || x[index] > to || value === null || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return null;
  if (log) return [low / 1.08, high * 1.08];
  const air = (high - low) * 0.05 || Math.abs(low) * 0.1 || 1;
  return [low >= 0 && low < air ? 0 : low - air, high + air];
}

function pathOf({ x, y }, view) {
  let path = "", pen = "M";
  for (let index = 0; index < x.length; index++) {
    const height = view.y(y[index]);
    if (height === null) pen = "M";
    else {
      path += `${pen}${view.x(x[index]).toFixed(1)} ${height.toFixed(1)}`;
      pen = "L";
    }
  }
  return path;
}

// Draws lines {x, y, name, colour, width, opacity, dash, points} into an element, and gives the view: where steps and values are on it.
function plot(element, { lines, range, log, format, marks }) {
  const width = Math.max(160, element.clientWidth), height = element.clientHeight;
  const bounds = extent(lines, range, log) ?? (log ? [0.1, 1] : [0, 1]);
  const count = Math.max(3, Math.round(height / 42));
  const ticks = log ? logTicks(...bounds, count) : linearTicks(...bounds, count);
  const top = Math.max(...ticks.map(Math.abs), 0);
  const gap = ticks.length > 1 ? Math.min(...ticks.slice(1).map((tick, index) => tick - ticks[index])) : top;
  const digits = Math.min(12, Math.max(2, Math.floor(Math.log10(top || 1)) - Math.floor(Math.log10(gap || 1)) + 1));
  const tiny = format === "number" && ticks.some((tick) => tick !== 0 && Math.abs(tick) < 1e-3);
  const labels = ticks.map((tick) => tell(tick, tiny ? "power" : format, digits));
  const left = 12 + 6.7 * Math.max(2, ...labels.map((label) => label.length));
  const right = width - EDGE.right, bottom = height - EDGE.bottom;
  const rise = (value) => (log ? Math.log(value) : value), [floor, ceiling] = bounds.map(rise);
  const view = {
    lines, range, left, right, bottom, height, width,
    x: (step) => left + ((step - range[0]) / (range[1] - range[0])) * (right - left),
    y: (value) => {
      if (value === null || (log && value <= 0)) return null;
      return bottom - ((rise(value) - floor) / (ceiling - floor)) * (bottom - EDGE.top);
    },
    step: (place) => range[0] + ((place - left) / (right - left)) * (range[1] - range[0]),
  };
  const sheet = svg("svg", { width, height, "aria-hidden": "true" });
  ticks.forEach((tick, index) => {
    const level = view.y(tick);
    sheet.append(svg("line", { class: "rule", x1: left, x2: right, y1: level, y2: level }));
    sheet.append(svg("text", { x: left - 7, y: level + 4, "text-anchor": "end" }, labels[index]));
  });
  for (const step of linearTicks(...range, Math.max(2, Math.floor((right - left) / 52)), 1)) {
    sheet.append(svg("text", { x: view.x(step), y: bottom + 17, "text-anchor": "middle" }, tell(step, "si", 6)));
    sheet.append(svg("line", { class: "axis", x1: view.x(step), x2: view.x(step), y1: bottom, y2: bottom + 4 }));
  }
  sheet.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  const [wide, high] = [right - left + 6, bottom + 3]; // what a zoom leaves outside is cut off by a sheet of its own
  const inside = svg("svg", { x: left - 3, y: 0, width: wide, height: high, viewBox: `${left - 3} 0 ${wide} ${high}` });
  inside.append(...marks.map((mark) => upright(mark, view)));
  for (const line of lines) {
    const style = `stroke: var(${line.colour}); stroke-width: ${line.width}; opacity: ${line.opacity}`;
    const dashes = { dot: "2 4", dash: "7 4" }[line.dash] ?? "none";
    inside.append(svg("path", { class: "line", d: pathOf(line, view), style, "stroke-dasharray": dashes }));
    if (line.points) {
      line.x.forEach((step, index) => {
        const level = view.y(line.y[index]);
        const filled = `fill: var(${line.colour}); opacity: ${line.opacity}`;
        if (level !== null) inside.append(svg("circle", { cx: view.x(step), cy: level, r: 2.6, style: filled }));
      });
    }
  }
  const pointer = svg("g", { class: "pointer" });
  inside.append(pointer);
  sheet.append(inside);
  element.querySelector("svg")?.remove();
  element.prepend(sheet);
  return Object.assign(view, { pointer, inside });
}

function upright({ step, text = "", kind }, view) {
  const group = svg("g", { class: `mark ${kind}` }), place = view.x(step);
  group.append(svg("line", { x1: place, x2: place, y1: EDGE.top, y2: view.bottom }));
  if (text) group.append(svg("text", { transform: `translate(${place - 5} ${EDGE.top + 4}) rotate(-90)`, "text-anchor": "end" }, text));
  return group;
}

// The index of the step that is nearest, in ascending steps.
function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - steps[low - 1] <= steps[low] - step ? low - 1 : low;
}

// What the lines say near a step: {step, found: [{line, index}]}, or null.
function readAt(view, wanted) {
  const close = (view.range[1] - view.range[0]) * 0.02;
  const shown = view.lines.filter((line) => line.x.length).map((line) => ({ line, index: nearest(line.x, wanted) }));
  if (!shown.length) return null;
  const away = ({ line, index }, from) => Math.abs(line.x[index] - from);
  const first = shown.reduce((best, each) => (away(each, wanted) < away(best, wanted) ? each : best));
  const step = first.line.x[first.index];
  const found = shown.map(({ line }) => ({ line, index: nearest(line.x, step) })).filter((each) => away(each, step) <= close);
  return { step, found };
}
