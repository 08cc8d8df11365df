// One study, live.

import { follow, get, post, query } from "../api.js";
import { card, chip, h, link, problem, replace, select, studyChip, toast } from "../dom.js";
import { duration, measure } from "../format.js";
import { Plot } from "../plot.js";
import { TrialsTable } from "../trials.js";

const REFRESH_MS = 700;
const PLOTS_MS = 2500;
const POLL_MS = 10000;

export async function studyPage(page, key) {
  const table = new TrialsTable(key);
  // Asked for at once: one round trip, not one behind the other.
  const [first, rows, reasons] = await Promise.all([get(`/studies/${key}`), table.ask(), askFailures()]);
  let study = first;
  const trialPath = (number) => `/studies/${key}/trials/${number}`;
  const head = h("div", {});
  const tiles = h("div", { class: "tiles" });
  const failures = card("Trials that did not complete", {}, h("div", {}));
  const stages = card("Stages", {}, h("div", {}));
  const axes = { scatter: { x: "", y: "" }, importance: { y: "" }, slice: { x: "" }, layer: { y: "" } };
  const drawings = h("div", { class: "inside" });
  let charts = [];
  let offered = null;
  let plotted = null;
  let plottedAt = 0;

  page.crumbs([study.name]);
  page.show(head, tiles, h("div", { class: "grid" }, drawings, stages, failures,
    card("Trials", { wide: true, id: "trials" }, table.element)));
  draw();
  // Words and numbers first: plots of many trials take the server longer.
  drawFailures(reasons);
  await table.refresh(study, rows);
  plot();

  // The rows were asked for beside the study, so they may be older than it.
  let tabled = null;
  let pending = 0;
  let busy = false;

  function soon(delay = REFRESH_MS) {
    if (!pending) pending = setTimeout(refresh, delay);
  }

  async function refresh() {
    pending = 0;
    if (busy) {
      soon();
      return;
    }
    busy = true;
    try {
      const states = study.state;
      const found = await get(`/studies/${key}`);
      if (!page.current()) return;
      study = found;
      draw();
      if (study.version !== tabled || study.state !== states) {
        tabled = study.version;
        const [, told] = await Promise.all([table.refresh(study), askFailures()]);
        drawFailures(told);
      }
      if (study.version !== plotted) {
        const wait = plottedAt + PLOTS_MS - performance.now();
        if (wait > 0) soon(wait);
        else plot();
      }
    } catch (error) {
      if (error.status === 404) page.show(problem(error));
    } finally {
      busy = false;
    }
  }

  page.onleave(follow(key, () => soon(), (state) => page.link(state)));
  const timer = setInterval(() => soon(0), POLL_MS);
  page.onleave(() => {
    clearInterval(timer);
    clearTimeout(pending);
    charts.forEach((chart) => chart.plot.close());
    charts = [];
    table.close();
  });

  // What can be chosen grows with the first trials: the plots are then offered anew.
  function offer() {
    const choices = JSON.stringify([study.measures.map((each) => each.name), [...study.parameters].sort(), study.layer_kinds]);
    if (choices === offered) return;
    offered = choices;
    charts.forEach((chart) => chart.plot.close());
    charts = plots(key, study, trialPath, axes);
    replace(drawings, charts.map((chart) => chart.card));
    if (plotted !== null) plot();
  }

  function plot() {
    plotted = study.version;
    plottedAt = performance.now();
    charts.forEach((chart) => chart.plot.update(plotted));
  }

  function draw() {
    offer();
    replace(head, heading(key, study, () => soon(300)));
    replace(tiles, ...tilesOf(study, trialPath));
    replace(stages.lastChild, stagesOf(study));
    stages.hidden = !study.stages.length;
    besides();
  }

  function askFailures() {
    return get(`/studies/${key}/failures`);
  }

  // Each of the two fills the row where the other has nothing to say.
  function besides() {
    stages.classList.toggle("wide", failures.hidden);
    failures.classList.toggle("wide", stages.hidden);
  }

  function drawFailures(found) {
    failures.hidden = !found.length;
    besides();
    replace(failures.lastChild, h("table", {}, h("tbody", {}, found.map((reason) => h("tr", {},
      h("td", {}, chip(reason.state)),
      h("td", { class: "num" }, reason.count),
      h("td", {}, reason.what, h("div", { class: "small" }, reason.trials.slice(0, 8).map((number) => [link(trialPath(number), `#${number}`), " "]))))))));
  }
}

function heading(key, study, changed) {
  async function command(kind) {
    try {
      const answer = await post(`/studies/${key}/commands`, { kind });
      toast(answer.listening ? `${kind}: told to ${answer.listening} driver${answer.listening > 1 ? "s" : ""}`
        : `${kind}: stored, but nobody searches this study now. Run its qsearch launch again.`);
      changed();
    } catch (error) {
      toast(`${error.what}${error.fix ? `: ${error.fix}` : ""}`);
    }
  }
  const running = study.state === "running" && study.listening > 0;
  const acts = h("div", { class: "acts" },
    running ? h("button", { onclick: () => command("pause") }, "Pause") : null,
    study.paused || (study.can_resume && !study.listening && (study.silent || study.state !== "running") && study.finished < study.target_trials)
      ? h("button", { class: "primary", onclick: () => command("resume") }, "Resume") : null,
    study.listening ? h("button", { class: "danger", onclick: () => command("stop") }, "Stop") : null,
    study.has_module ? link(`/studies/${key}/module`, "Module", { class: "button" }) : null);
  const facts = [study.model, study.evaluator && `scored by ${study.evaluator}`, study.sampler && `sampler ${study.sampler}`,
    `seed ${study.seed}`, study.stopped && `stopped: ${study.stopped}`].filter(Boolean);
  return [h("div", { class: "head" }, h("h1", {}, study.name), studyChip(study), acts),
    h("p", { class: "under" }, facts.join(" · "))];
}

function tilesOf(study, trialPath) {
  const base = study.baseline?.[study.measure.name];
  const best = study.best;
  const bar = h("span", {});
  bar.style.width = `${Math.min(100, (100 * study.finished) / Math.max(study.target_trials, 1))}%`;
  const left = study.target_trials - study.finished;
  const goes = study.state === "running" && study.listening && study.rate_per_min > 0;
  const delta = best && typeof base === "number" && typeof best.value === "number" && study.measure.unit === "%"
    ? `${best.value >= base ? "+" : "−"}${Math.abs(100 * (best.value - base)).toFixed(2)} points against float` : null;
  const others = Object.entries(study.counts).filter(([state]) => state !== "complete");
  return [
    tile("Best", best ? measure(best.value, study.measure) : "–",
      best ? [link(trialPath(best.number), `trial ${best.number}`), delta ? ` · ${delta}` : "",
        best.breaks.length ? h("div", { class: "bad" }, `breaks ${best.breaks.join(" and ")}`) : null]
        : study.state === "complete" ? "no trial gave a module" : study.measure.words, "best"),
    tile("Float model", base === undefined ? "–" : measure(base, study.measure), study.measure.words, "float"),
    h("div", { class: "tile full" }, h("div", { class: "name" }, "Progress"),
      h("div", { class: "big", "data-tile": "progress" }, `${study.finished} / ${study.target_trials}`),
      h("div", { class: "meter", "aria-hidden": "true" }, bar),
      h("div", { class: "note" }, goes && left <= 0 ? "writing the winner" : goes ? `${study.rate_per_min.toFixed(1)} trials/min · ${duration((60 * left) / study.rate_per_min)} left`
        : study.rate_per_min ? `${study.rate_per_min.toFixed(1)} trials/min` : study.state === "running" ? "no rate yet" : "")),
    tile("Complete", String(study.counts.complete ?? 0),
      others.length ? others.map(([state, count]) => `${count} ${state}`).join(", ") : "no other trials", "complete"),
    tile("Drivers", String(study.listening), driversOf(study), "drivers"),
  ];
}

function tile(name, big, note, id) {
  return h("div", { class: "tile" }, h("div", { class: "name" }, name), h("div", { class: "big", "data-tile": id }, big),
    h("div", { class: "note" }, note));
}

function driversOf(study) {
  const alive = study.drivers.filter((driver) => driver.state === "running");
  if (!study.listening) {
    const silent = Math.min(...alive.map((driver) => driver.silent_s));
    return alive.length ? `nothing heard for ${duration(silent)}` : study.state === "running" ? "none yet" : "nobody is searching";
  }
  const workers = alive.reduce((sum, driver) => sum + driver.workers, 0);
  return `${workers} worker${workers === 1 ? "" : "s"}`;
}

function stagesOf(study) {
  return h("table", {}, h("thead", {}, h("tr", {}, ["Stage", "State"].map((words) => h("th", { scope: "col" }, words)),
    h("th", { scope: "col", class: "num" }, "Trials"), h("th", { scope: "col", class: "num" }, "Took"))),
  h("tbody", {}, study.stages.map((stage) => h("tr", {}, h("td", {}, stage.name), h("td", {}, chip(stage.state)),
    h("td", { class: "num" }, stage.name === "sensitivity" ? (stage.planned ? `${stage.planned} layers` : "–")
      : stage.planned === null ? stage.finished : `${stage.finished} / ${stage.planned}`),
    h("td", { class: "num" }, stage.started_at ? duration((stage.finished_at ?? Date.now() / 1000) - stage.started_at) : "–")))));
}

function plots(key, study, trialPath, { scatter, importance, slice, layer }) {
  const base = `/studies/${key}/plots`;
  const names = study.measures.map((each) => [each.name, each.words]);
  const made = [];
  function add(title, path, choices = [], wide = false) {
    const plot = new Plot(path, trialPath);
    const acts = choices.map(([label, options, about, axis]) => select(label, options, about[axis], (value) => {
      about[axis] = value;
      plot.draw();
    }));
    made.push({ plot, card: card(title, { acts, wide }, plot.element) });
  }
  importance.y ||= names[0][0];
  if (!study.parameters.includes(slice.x)) slice.x = study.parameters[0] ?? "";
  if (!study.layer_kinds.includes(layer.y)) layer.y = study.layer_kinds.includes("sensitivity") ? "sensitivity" : study.layer_kinds[0];
  add("Optimisation history", () => `${base}/history.svg`);
  add("Accuracy and cost", () => `${base}/scatter.svg?${query(scatter)}`, [
    ["Measure across", [["", "cost"], ...names], scatter, "x"],
    ["Measure upwards", [["", "accuracy"], ...names], scatter, "y"]]);
  add("Importance of parameters", () => `${base}/importances.svg?${query(importance)}`, [
    ["Measure of the importances", names, importance, "y"]]);
  if (study.parameters.length) {
    add("Slice", () => `${base}/slice.svg?${query(slice)}`, [
      ["Parameter of the slice", study.parameters.map((name) => [name, name]), slice, "x"]]);
  }
  add("Parallel coordinates", () => `${base}/parallel.svg`, [], study.parameters.length > 0);
  if (study.layer_kinds.length) {
    add("Layers", () => `${base}/layers.svg?${query(layer)}`, [
      ["Kind of figures", study.layer_kinds.map((kind) => [kind, kind]), layer, "y"]], true);
  }
  return made;
}
