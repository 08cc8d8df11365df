// A study as one file: what the dashboard shows, drawn by the same code, with nothing to load.

import { Plot, Trials, bars, markers, studyPlots } from "./charts.js";
import { card, h, replace, scroller } from "./dom.js";
import { measure, number, plain } from "./format.js";
import { objectiveWords, progressOf, resultHead, studyChip } from "./head.js";

const ROWS = 200;
const chosen = new Map();
const settings = { get: (name) => chosen.get(name) ?? null, set: (name, value) => chosen.set(name, value) };

function cardsOf(plots) {
  return plots.map(({ plot, wide }) => card(plot.title, { acts: plot.acts, wide }, plot.element));
}

function tableOf(head, rows, label) {
  const body = h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => (i ? h("td", {}, cell) : h("th", { scope: "row" }, cell))))));
  return scroller(label, h("table", { class: "dense sticky" }, h("thead", {}, h("tr", {}, head.map((words) => h("th", { scope: "col" }, words)))), body));
}

function trialsTable(told) {
  const { study, columns } = told;
  const trials = new Trials(columns, study);
  const measures = study.measures.filter((each) => each.name !== "seconds");
  const names = study.parameters.filter((name) => !study.constant.includes(`params.${name}`));
  const rows = told.best_first.slice(0, ROWS).map((i) => [`#${trials.number(i)}`, ...measures.map((each) => measure(columns.scores[each.name][i], each)), ...names.map((name) => (trials.param(name, i) === undefined ? "" : plain(trials.param(name, i))))]);
  return card("Trials, the best first", { wide: true }, told.best_first.length > ROWS ? h("p", { class: "small soft" }, `The best ${ROWS} of ${told.best_first.length} complete trials.`) : null, tableOf(["Trial", ...measures.map((each) => each.words), ...names], rows, "Trials"));
}

function drawStudy(main, told) {
  const { study } = told;
  const source = { study, layers: told.layers, trials: new Trials(told.columns, study), importances: async (name) => told.importances[name] ?? { importances: {}, left_out: [] } };
  replace(main, h("div", { class: "head" }, h("h1", {}, study.name), studyChip(study)), h("p", { class: "under" }, told.facts.join(" · ")), progressOf(study), resultHead(study, null),
    h("div", { class: "grid" }, cardsOf(studyPlots(source, { settings })),
      told.failures.length ? card("Trials that did not complete", { wide: true }, tableOf(["Trials", "Reason"], told.failures.map(([count, what]) => [String(count), what]), "Trials that did not complete")) : null,
      card("Configuration of the best trial", { wide: true }, h("details", {}, h("summary", {}, `${Object.keys(told.qconfig).length} fields`), tableOf(["Field", "Value"], Object.entries(told.qconfig).sort().map(([name, value]) => [name, plain(value)]), "Configuration"))),
      trialsTable(told)));
  document.title = `${study.name}: ${study.verdict.words} (${objectiveWords(study)})`;
}

function drawInsight(main, told) {
  const plots = told.plots.map(({ name, about, series, rows, unit, top }) => ({ about, plot: new Plot({ name, title: name, settings,
    draw: (plot) => (series ? markers(plot, series, rows, unit, top ?? undefined) : bars(plot, rows, unit)) }) }));
  replace(main, h("h1", {}, told.title), h("dl", { class: "pairs under" }, Object.entries(told.facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("div", { class: "grid" }, plots.map(({ plot, about }) => card(plot.title, { acts: plot.acts }, h("p", { class: "small soft" }, about), plot.element)),
      told.tables.map(({ name, head, rows, open }) => card(name, { wide: true }, h("details", { open }, h("summary", {}, `${rows.length} rows`), tableOf(head, rows, name))))));
}

const told = JSON.parse(document.getElementById("data").textContent);
(told.study ? drawStudy : drawInsight)(document.getElementById("main"), told);
