"use strict";

const albums = [];

function blob(picture) {
  return document.getElementById(`picture-${picture.blob}`).textContent;
}

function captionOf(run, what, ...more) {
  const chip = make("i", { className: "chip" });
  chip.style.background = `var(--series-${run % 8})`;
  const name = many && run !== null ? [chip, make("span", { textContent: report.runs[run] })] : [];
  return make("figcaption", {}, ...name, make("span", { textContent: what, className: name.length ? "quiet" : "" }), ...more);
}

// What the images of a grid are called, as a list, or nothing.
function wordsOf(captions, ariaLabel) {
  const items = captions.map((caption) => make("li", { textContent: caption }));
  return items.length ? [make("ol", { className: "captions", tabIndex: 0, ariaLabel }, ...items)] : [];
}

// One run's picture or text at a step that others set: the nearest that it has, which it says where it is another.
function sheetOf(grid, shown) {
  const image = make("img"), text = make("pre", { className: "text", tabIndex: 0 });
  const link = make("a", {});
  const said = make("span", { className: "quiet" });
  const figure = make("figure", {}, captionOf(shown.run, grid.name, said), link, ...wordsOf(shown.captions, "Prompts, row by row"));
  figure.set = (step) => {
    const index = nearest(shown.steps, step), picture = shown.pictures[index];
    const called = `${grid.name} of ${report.runs[shown.run]} at step ${shown.steps[index]}`;
    if (picture.text === undefined) {
      Object.assign(image, { src: blob(picture), width: picture.width, height: picture.height, alt: called });
      link.replaceChildren(image);
    } else {
      Object.assign(text, { textContent: picture.text, ariaLabel: called });
      link.replaceChildren(picture.file === null ? "" : "file");
      figure.append(text);
    }
    if (picture.file !== null) link.href = picture.file;
    said.textContent = shown.steps[index] === step ? "" : `nearest: step ${shown.steps[index].toLocaleString("en")}`;
  };
  return figure;
}

function realSheet(example) {
  const { captions, width, height } = example;
  const image = make("img", { src: blob(example), width, height, alt: "Training examples, as the model sees them" });
  return make("figure", {}, captionOf(example.run, "training data"), image, ...wordsOf(captions, "Captions, row by row"));
}

function albumOf(grid, first) {
  const id = `step-${albums.length}`;
  const slider = make("input", { type: "range", id, min: 0, max: grid.steps.length - 1, value: grid.steps.length - 1 });
  const said = make("output", { htmlFor: id });
  const play = make("button", { type: "button", textContent: "Play", ariaPressed: "false" });
  const sheets = grid.runs.map((shown) => sheetOf(grid, shown));
  let timer = null;
  const album = {
    go(index) {
      slider.value = Math.max(0, Math.min(grid.steps.length - 1, index));
      const step = grid.steps[slider.value];
      said.value = `step ${step.toLocaleString("en")}`;
      slider.setAttribute("aria-valuetext", said.value);
      for (const sheet of sheets) sheet.set(step);
      if (first) showStep(step);
    },
    move: (by) => album.go(Number(slider.value) + by),
    seek: (step) => album.go(nearest(grid.steps, step)),
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    Object.assign(play, { textContent: "Play", ariaPressed: "false" });
  };
  play.onclick = () => {
    if (timer !== null) return stop();
    if (Number(slider.value) === grid.steps.length - 1) album.go(0);
    Object.assign(play, { textContent: "Pause", ariaPressed: "true" });
    timer = setInterval(() => {
      album.move(1);
      if (Number(slider.value) === grid.steps.length - 1) stop();
    }, 350);
  };
  slider.oninput = () => album.go(Number(slider.value));
  const label = make("label", { htmlFor: id, textContent: grid.name === "samples" ? "Step" : `${grid.name}: step` });
  const player = make("div", { className: "player" }, play, label, slider, said);
  const real = first ? report.examples.map(realSheet) : [];
  album.element = make("div", { className: "album" }, player, make("div", { className: "sheets" }, ...sheets, ...real));
  album.go(grid.steps.length - 1);
  return album;
}

// The step whose pictures are shown, as a line in the charts of learning.
function showStep(step) {
  state.step = step;
  refresh((chart) => chart.section.startsWith("Learning"));
}

function openPictures() {
  const section = document.getElementById("pictures");
  report.grids.forEach((grid, index) => {
    albums.push(albumOf(grid, index === 0));
    section.append(albums.at(-1).element);
  });
  const none = make("p", { className: "quiet", textContent: "No pictures yet." });
  if (!report.grids.length) section.append(none, ...report.examples.map(realSheet));
  document.addEventListener("step", (event) => albums[0]?.seek(event.detail));
  document.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const busy = event.target.closest("input, .scroll, .captions, pre") || event.altKey || event.ctrlKey || event.metaKey;
    if (by && albums.length && !busy) albums[0].move(by);
  });
}

function openSettings() {
  const rows = [...document.querySelectorAll("#settings tbody tr")];
  const search = document.getElementById("search"), differs = document.getElementById("differs");
  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    for (const row of rows) {
      row.hidden = (differs.checked && !row.classList.contains("differs")) || !row.textContent.toLowerCase().includes(wanted);
    }
    document.getElementById("matches").value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} keys`;
  };
  search.oninput = differs.onchange = filter;
  filter();
}

openPictures();
openSettings();
performance.mark("page-ready");
