"use strict";

const report = JSON.parse(document.getElementById("data").textContent);
const many = report.runs.length > 1;
const every = report.charts.flatMap((chart) => chart.lines.flatMap((line) => [line.x[0], line.x.at(-1)]));
const whole = every.length ? [Math.min(...every), Math.max(...every, Math.min(...every) + 1)] : [0, 1];
const state = { reach: 0, log: false, zoom: null, step: null, runs: report.runs.map(() => true) };

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function count(number) {
  return number.toLocaleString("en");
}

function colourOf(line) {
  return `--series-${(many ? line.run : line.tone) % 8}`;
}

function nameOf(line, chart) {
  if (!many) return line.label;
  const kinds = new Set(chart.lines.map((each) => each.label));
  return kinds.size > 1 ? `${report.runs[line.run]}, ${line.label}` : report.runs[line.run];
}

// An exponential average over about `reach` steps, whatever the distance of the points; debiased, so that it begins at the first value.
function averaged(x, y, reach) {
  let total = 0, weight = 0, before = x.length > 1 ? 2 * x[0] - x[1] : 0;
  return y.map((value, index) => {
    if (value === null) return null;
    const kept = Math.exp((before - x[index]) / reach);
    total = kept * total + (1 - kept) * value;
    weight = kept * weight + (1 - kept);
    before = x[index];
    return weight > 0 ? total / weight : value;
  });
}

// A line as it is drawn: its points, faint below their average where it has one.
function strokesOf(line, chart) {
  const smooth = line.smooth && state.reach > 0;
  const stroke = { name: nameOf(line, chart), colour: colourOf(line), width: 2, opacity: 1, dash: many ? line.dash : "solid" };
  const logged = { ...stroke, x: line.x, y: line.y, points: line.x.length <= 60 };
  if (!smooth) return [logged];
  const x = line.mean_x ?? line.x, y = averaged(x, line.mean_y ?? line.y, state.reach);
  const average = { ...stroke, x, y, points: x.length === 1, name: line.faint ? `${stroke.name}, smoothed` : stroke.name };
  return line.faint ? [{ ...logged, width: 1, opacity: many ? 0.2 : 0.25, name: `${stroke.name}, as logged` }, average] : [average];
}

function marksOf(chart) {
  if (!chart.section.startsWith("Learning")) return [];
  const marks = report.marks.map((mark) => ({ ...mark, kind: "event", text: report.marks.length <= 8 ? mark.text : "" }));
  return state.step === null ? marks : [...marks, { step: state.step, kind: "shown" }];
}

function draw(chart) {
  chart.stale = false;
  const lines = chart.lines.filter((line) => !line.hidden && state.runs[line.run]).flatMap((line) => strokesOf(line, chart));
  const sorted = [...lines.filter((line) => line.opacity < 1), ...lines.filter((line) => line.opacity === 1)];
  const range = state.zoom ?? whole;
  chart.view = plot(chart.plot, { lines: sorted, range, log: chart.log && state.log, format: chart.format, marks: marksOf(chart) });
  chart.tip.hidden = true;
}

function inSight(chart) {
  const box = chart.plot.getBoundingClientRect();
  return box.bottom > -200 && box.top < innerHeight + 200;
}

// Redraws the charts in sight at the next frame; the others when they come into it.
let waiting = null;
function refresh(which = () => true) {
  for (const chart of report.charts) chart.stale ||= which(chart);
  waiting ??= requestAnimationFrame(() => {
    waiting = null;
    for (const chart of report.charts) if (chart.stale && inSight(chart)) draw(chart);
  });
}

function zoomTo(range) {
  state.zoom = range;
  document.getElementById("unzoom").hidden = range === null;
  refresh();
}

// The values at the pointer: dots on the lines, and a box beside them.
function point(chart, place) {
  const { view, tip } = chart, read = readAt(view, view.step(place));
  if (!read) return;
  const { step, found } = read, at = view.x(step);
  view.pointer.replaceChildren(svg("line", { x1: at, x2: at, y1: 0, y2: view.bottom }));
  tip.replaceChildren(make("b", { textContent: `step ${count(step)}` }));
  for (const { line, index } of found) {
    const level = view.y(line.y[index]);
    const style = `fill: var(${line.colour})`;
    if (level !== null) view.pointer.append(svg("circle", { cx: view.x(line.x[index]), cy: level, r: 3.5, style }));
    const swatch = make("i", { className: "swatch" });
    swatch.style.cssText = `border-top-color: var(${line.colour}); opacity: ${line.opacity}`;
    const value = line.y[index] === null ? "not finite" : tell(line.y[index], chart.format, 5);
    const where = line.points && line.x[index] !== step ? ` at ${count(line.x[index])}` : "";
    tip.append(make("span", {}, swatch, line.name + where), make("span", { className: "value" }, value));
  }
  tip.hidden = false;
  const room = view.width - tip.offsetWidth;
  tip.style.left = `${Math.max(0, at + 14 < room ? at + 14 : Math.min(room, at - tip.offsetWidth - 14))}px`;
}

function leave(chart) {
  chart.view.pointer.replaceChildren();
  chart.tip.hidden = true;
}

// Hovering reads, dragging zooms every chart, a click shows the pictures of that step.
function listen(chart) {
  let from = null, band = null;
  const place = (event) => Math.min(chart.view.right, Math.max(chart.view.left, event.clientX - chart.plot.getBoundingClientRect().left));
  chart.plot.onpointermove = (event) => {
    point(chart, place(event));
    if (from === null || Math.abs(place(event) - from) < 5) return;
    if (!band) chart.plot.setPointerCapture(event.pointerId);
    band ??= chart.view.inside.appendChild(svg("rect", { class: "band", y: 0, height: chart.view.bottom }));
    band.setAttribute("x", Math.min(from, place(event)));
    band.setAttribute("width", Math.abs(from - place(event)));
  };
  chart.plot.onpointerdown = (event) => (from = event.button === 0 ? place(event) : null);
  chart.plot.onpointerup = (event) => {
    const steps = from === null ? [] : [chart.view.step(from), chart.view.step(place(event))].sort((a, b) => a - b);
    if (band) zoomTo(steps[1] - steps[0] >= 1 ? steps : [steps[0] - 0.5, steps[0] + 0.5]);
    else if (from !== null) document.dispatchEvent(new CustomEvent("step", { detail: chart.view.step(from) }));
    band?.remove();
    from = band = null;
  };
  chart.plot.onpointercancel = () => {
    band?.remove();
    from = band = null;
  };
  chart.plot.onpointerleave = () => leave(chart);
  chart.plot.ondblclick = () => zoomTo(null);
}

// A button that shows and hides lines, with the dash or the colour that tells them.
function toggle(name, colour, dash, change) {
  const swatch = make("i", { className: "swatch" });
  swatch.style.cssText = `border-top-color: var(${colour}); border-top-style: ${{ dot: "dotted", dash: "dashed" }[dash] ?? "solid"}`;
  const button = make("button", { type: "button", title: "Show or hide", ariaPressed: "true" }, swatch, name);
  button.onclick = () => {
    button.ariaPressed = String(button.ariaPressed !== "true");
    change(button.ariaPressed === "true");
  };
  return button;
}

// What a chart's lines are, where it has several for each run; which colour is which run stands in the toolbar.
function legendOf(chart) {
  const legend = make("div", { className: "legend" }), kinds = new Map(chart.lines.map((line) => [line.label, line]));
  for (const [label, line] of kinds.size > 1 ? kinds : []) {
    const change = (shown) => {
      for (const each of chart.lines) if (each.label === label) each.hidden = !shown;
      draw(chart);
    };
    legend.append(toggle(label, many ? "--soft" : colourOf(line), many ? line.dash : "solid", change));
  }
  return legend;
}

// How many charts stand beside each other where there is room: what leaves no gap.
function columnsOf(section, charts) {
  if (section.startsWith("Learning")) return charts.length % 3 ? "two" : "three";
  return { 2: "two", 4: "four" }[charts.length] ?? "three";
}

function shelve() {
  for (const section of new Set(report.charts.map((chart) => chart.section))) {
    const charts = report.charts.filter((chart) => chart.section === section);
    const shelf = make("div", { className: `shelf ${columnsOf(section, charts)}` });
    for (const chart of charts) {
      chart.tip = make("div", { className: "tip", hidden: true });
      chart.plot = make("div", { className: "plot", role: "img", ariaLabel: `${chart.title}, by step` }, chart.tip);
      shelf.append(make("div", { className: "chart" }, make("h4", { textContent: chart.title }), legendOf(chart), chart.plot));
    }
    document.getElementById("charts").append(make("h3", { className: "kicker", textContent: section }), shelf);
  }
}

function setReach() {
  const position = Number(document.getElementById("smoothing").value) / 100, steps = whole[1] - whole[0];
  const least = Math.max(1, steps * 0.0005), most = Math.max(2, steps * 0.3);
  state.reach = position ? least * (most / least) ** position : 0;
  const told = Number(state.reach.toPrecision(2));
  document.getElementById("reach").value = state.reach ? `over ${count(told)} step${told === 1 ? "" : "s"}` : "off";
}

function openCurves() {
  shelve();
  setReach();
  if (report.remarks.length) document.getElementById("remarks").textContent = `Not drawn: ${report.remarks.join("; ")}.`;
  const none = make("p", { className: "quiet", textContent: "No numbers yet." });
  if (!report.charts.length) document.querySelector(".toolbar").replaceWith(none);
  for (const [run, name] of many ? report.runs.entries() : []) {
    const change = (shown) => {
      state.runs[run] = shown;
      refresh();
    };
    document.getElementById("legend")?.append(toggle(name, `--series-${run % 8}`, "solid", change));
  }
  for (const chart of report.charts) {
    draw(chart);
    listen(chart);
  }
  performance.mark("charts-drawn");
  new ResizeObserver(() => refresh()).observe(document.getElementById("charts"));
  const watcher = new IntersectionObserver(() => refresh(() => false), { rootMargin: "200px" });
  for (const chart of report.charts) watcher.observe(chart.plot);
}

document.getElementById("smoothing").oninput = () => {
  setReach();
  refresh((chart) => chart.lines.some((line) => line.smooth));
};
document.getElementById("log").onchange = (event) => {
  state.log = event.target.checked;
  refresh((chart) => chart.log);
};
document.getElementById("unzoom").onclick = () => zoomTo(null);
openCurves();
