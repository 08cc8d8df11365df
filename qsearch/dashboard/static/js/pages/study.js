// One study, live.

import { charts, get, post } from "../api.js";
import { ask, card, chip, failed, h, link, problem, replace, toast } from "../../web/dom.js";
import { duration, plain } from "../../web/format.js";
import { progressOf, resultHead, studyChip } from "../../web/head.js";
import { notesCard } from "../notes.js";
import { go, settings } from "../router.js";
import { TrialsTable } from "../trials.js";

const PLOTS_MS = 2500;
const POLL_MS = 1500;

// What the head shows: heartbeats count in steps of ten seconds.
const told = (study) => JSON.stringify([study, study.drivers.map((driver) => Math.floor(driver.silent_s / 10))],
  (name, value) => (name === "silent_s" ? undefined : value));

export async function studyPage(page, key) {
  const table = new TrialsTable(key);
  // Asked for at once: one round trip, not one behind the other.
  const [first, rows, reasons] = await Promise.all([get(`/studies/${key}`), table.ask(), askFailures()]);
  let study = first;
  const trialPath = (number) => `/studies/${key}/trials/${number}`;
  const head = h("div", {});
  const failures = card("Trials that did not complete", {}, h("div", {}));
  const stages = card("Stages", {}, h("div", {}));
  const notes = study.can_change ? notesCard(key, null, study, () => soon(0)) : null;
  const drawings = h("div", { class: "inside" });
  let plots = [];
  let offered = null;
  let plotted = null;
  let plottedAt = 0;
  let source = null;
  // The rows were asked for beside the study, so they may be older than it.
  let tabled = null;
  let pending = 0;
  let busy = false;
  let shown = told(study);

  page.crumbs([study.name]);
  page.show(head, h("div", { class: "grid" }, card("Trials", { wide: true, id: "trials" }, table.element), drawings, stages, failures, notes));
  draw();
  // Words and numbers first: plots of many trials take longer.
  drawFailures(reasons);
  await table.refresh(study, rows);
  // The table is painted before the plots are fetched, unless a refresh has fetched them by then.
  requestAnimationFrame(() => setTimeout(() => page.current() && !plottedAt && plot()));

  function soon(delay) {
    clearTimeout(pending);
    pending = setTimeout(() => refresh().catch(() => {}), delay);
  }

  async function refresh() {
    if (busy) return;
    busy = true;
    try {
      const states = study.state;
      const found = await get(`/studies/${key}`);
      if (!page.current()) return;
      study = found;
      const now = told(study);
      if (now !== shown) draw();
      shown = now;
      if (study.version !== tabled || study.state !== states) {
        const { version } = study;
        const [, told] = await Promise.all([table.refresh(study), askFailures()]);
        tabled = version;
        drawFailures(told);
      }
      if (study.version !== plotted && performance.now() - plottedAt >= PLOTS_MS) await plot();
    } catch (error) {
      if (error.status !== 404) throw error;
      page.show(problem(error));
    } finally {
      busy = false;
    }
  }

  page.poll(refresh, POLL_MS);
  page.onleave(() => {
    clearTimeout(pending);
    plots.forEach((each) => each.plot.close());
    plots = [];
    table.close();
  });

  // Every trial is sent once a version; the plots are drawn here, and later where something is lost.
  async function plot() {
    const { version } = study;
    plottedAt = performance.now();
    let sent;
    try {
      sent = await Promise.all([charts(), get(`/studies/${key}/points`), get(`/studies/${key}/layers`)]);
    } catch {
      return;
    }
    const [{ Trials, studyPlots }, columns, layers] = sent;
    if (!page.current()) return;
    plotted = version;
    const asking = new Map();
    source = Object.assign(source ?? {}, { study, layers, trials: new Trials(columns, study),
      importances: (name) => {
        if (!asking.has(name)) asking.set(name, get(`/studies/${key}/importances?measure=${encodeURIComponent(name)}`));
        return asking.get(name);
      } });
    // What can be chosen grows with the first trials: the plots are then offered anew.
    const choices = JSON.stringify([study.measures.map((each) => each.name), study.parameters, study.layer_kinds, study.constant]);
    if (choices !== offered) {
      offered = choices;
      plots.forEach((each) => each.plot.close());
      plots = studyPlots(source, { settings, open: (number) => go(trialPath(number)), onbrush: brushed });
      replace(drawings, plots.map(({ plot: made, wide }) => card(made.title, { acts: made.acts, wide }, made.element)));
    } else plots.forEach((each) => each.plot.draw());
  }

  function brushed(name, range, about) {
    if (!range) return table.constrain(name, null);
    if (!about) return table.constrain(name, [`=${range.map((word) => (/[\s,"<>=!~]/.test(word) ? `"${word.replaceAll('"', "")}"` : word)).join(",")}`]);
    const stored = range.map((value) => (about.unit === "%" ? value / 100 : value));
    return table.constrain(name, [`>=${Number(stored[0].toPrecision(6))}`, `<=${Number(stored[1].toPrecision(6))}`]);
  }

  function draw() {
    replace(head, heading(key, study, () => soon(300)), progressOf(study), resultHead(study, trialPath, { downloads: downloadsOf(key, study) }));
    replace(stages.lastChild, stagesOf(study));
    stages.hidden = !study.stages.length;
    besides();
  }

  function askFailures() {
    return get(`/studies/${key}/failures`);
  }

  // The last of them fills its row.
  function besides() {
    notes?.classList.toggle("wide", stages.hidden === failures.hidden);
  }

  function drawFailures(found) {
    failures.hidden = !found.length;
    besides();
    replace(failures.lastChild, h("table", { class: "loose" }, h("tbody", {}, found.map((reason) => h("tr", {},
      h("td", {}, chip(reason.state)),
      h("td", { class: "num" }, reason.count),
      h("td", {}, reason.what, h("div", { class: "small" }, reason.trials.slice(0, 8).map((number) => [link(trialPath(number), `#${number}`), " "]))))))));
  }
}

export function downloadsOf(key, study) {
  if (!study.module_bytes) return null;
  const base = `/api/v1/studies/${key}`;
  return [["files/best.qmod", ".qmod"], ["export/c", "C"], ["export/onnx", "ONNX"]].map(([path, words]) => link(`${base}/${path}`, words, { class: "button", download: true }));
}

function heading(key, study, changed) {
  async function command(kind) {
    if (kind === "stop" && !(await ask(`Stop ${study.name}? Trials that run are given up; the best so far is written. The same command continues it.`, "Stop the search"))) return;
    try {
      const answer = await post(`/studies/${key}/commands`, { kind });
      toast(answer.listening ? `${kind}: told to ${answer.listening} driver${answer.listening > 1 ? "s" : ""}`
        : `${kind}: stored, but no driver runs this study now. Run its qsearch launch again.`);
      changed();
    } catch (error) {
      failed(error);
    }
  }
  async function forget() {
    if (!(await ask(`Delete ${study.name} with its ${plain(study.finished)} trials and files? This cannot be undone.`, "Delete the study"))) return;
    try {
      await post(`/studies/${key}/delete`, { name: study.name });
      go("/");
    } catch (error) {
      failed(error);
    }
  }
  const may = study.can_change;
  const running = study.state === "running" && study.listening > 0;
  const acts = h("div", { class: "acts" },
    may && running ? h("button", { onclick: () => command("pause") }, "Pause") : null,
    may && (study.paused || (study.can_resume && !study.listening && (study.silent || study.state !== "running") && study.finished < study.target_trials))
      ? h("button", { class: "primary", onclick: () => command("resume") }, "Resume") : null,
    may && study.listening ? h("button", { class: "danger", onclick: () => command("stop") }, "Stop") : null,
    study.module_bytes ? link(`/studies/${key}/module`, "Module", { class: "button" }) : null,
    !may || study.listening ? null : h("button", { class: "danger", onclick: forget }, "Delete"));
  const facts = [study.model, study.evaluator && `scored by ${study.evaluator}`, study.sampler && `sampler ${study.sampler}`,
    `seed ${study.seed}`, driversOf(study), study.stopped && `stopped: ${study.stopped}`].filter(Boolean);
  return [h("div", { class: "head" }, h("h1", {}, study.name), studyChip(study), acts),
    h("p", { class: "under" }, facts.join(" · "))];
}

function driversOf(study) {
  const alive = study.drivers.filter((driver) => driver.state === "running");
  if (study.listening) {
    const workers = alive.reduce((sum, driver) => sum + driver.workers, 0);
    return `${study.listening} driver${study.listening === 1 ? "" : "s"}, ${workers} worker${workers === 1 ? "" : "s"}`;
  }
  return alive.length ? `no driver: nothing heard for ${duration(Math.min(...alive.map((driver) => driver.silent_s)))}` : "";
}

function stagesOf(study) {
  return h("table", { class: "loose" }, h("thead", {}, h("tr", {}, ["Stage", "State"].map((words) => h("th", { scope: "col" }, words)),
    h("th", { scope: "col", class: "num" }, "Trials"), h("th", { scope: "col", class: "num" }, "Took"))),
  h("tbody", {}, study.stages.map((stage) => h("tr", {}, h("td", {}, stage.name), h("td", {}, chip(stage.state)),
    h("td", { class: "num" }, stage.name === "sensitivity" ? (stage.planned ? `${stage.planned} layers` : "–")
      : stage.planned === null ? stage.finished : `${stage.finished} / ${stage.planned}`),
    h("td", { class: "num" }, stage.started_at ? duration((stage.finished_at ?? Date.now() / 1000) - stage.started_at) : "–")))));
}
