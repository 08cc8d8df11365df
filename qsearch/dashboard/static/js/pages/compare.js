// Two to five trials, of one study or several: what differs first, then scores, layers, the rest.

import { charts, get } from "../api.js";
import { card, copy, h, link, replace, save, scroller } from "../../web/dom.js";
import { csv, measure, plain, signed } from "../../web/format.js";
import { limitsLine, trialChip } from "../../web/head.js";
import { go, settings } from "../router.js";

const MOST = 5;
const UNCHANGED = "–: the layer reads values as the one before gave them, nothing is rounded in between.";

export async function comparePage(page) {
  const given = new URLSearchParams(location.search).getAll("trial").map((word) => /^([0-9a-f]{8}-\d+):(\d+)$/.exec(word)).filter(Boolean).slice(0, MOST);
  page.crumbs(["compare"]);
  const keys = [...new Set(given.map(([, key]) => key))];
  const studies = new Map(await Promise.all(keys.map(async (key) => [key, await get(`/studies/${key}`)])));
  const trials = await Promise.all(given.map(async ([, key, at]) => ({ key, study: studies.get(key), ...await get(`/studies/${key}/trials/${at}`) })));
  const several = keys.length > 1;
  const name = (trial) => `${several ? `${trial.study.name} ` : ""}#${trial.number}`;
  const path = (chosen) => `/compare?${chosen.map(([key, at]) => `trial=${key}:${at}`).join("&")}`;
  const heads = (words) => h("thead", {}, h("tr", {}, h("th", { scope: "col" }, words), trials.map((trial) => h("th", { scope: "col", class: "num" }, link(`/studies/${trial.key}/trials/${trial.number}`, name(trial))))));

  const measures = new Map(trials.flatMap((trial) => trial.study.measures).filter((each) => !["seconds", "cpu_s"].includes(each.name)).map((each) => [each.name, each]));
  const scores = [...measures.values()].filter((about) => trials.some((trial) => trial.score && about.name in trial.score));
  const fields = [...new Set(trials.flatMap((trial) => Object.keys(trial.qconfig)))].sort();
  const words = (trial, field) => JSON.stringify(trial.qconfig[field]);
  const differing = fields.filter((field) => new Set(trials.map((trial) => words(trial, field))).size > 1);
  const layerRows = layersThatDiffer(trials);
  const plainFields = differing.filter((field) => field !== "layers");
  const row = (label, values, attributes) => h("tr", attributes, h("th", { scope: "row" }, label), values.map((value) => h("td", { class: "num" }, value)));
  const best = (about) => {
    const values = trials.map((trial) => trial.score?.[about.name]).map((value) => (value === null && about.infinite ? about.infinite : value)).filter((value) => typeof value === "number");
    return values.length ? (about.smaller_is_better ? Math.min : Math.max)(...values) : undefined;
  };
  const differ = (about) => new Set(trials.map((trial) => trial.score?.[about.name])).size > 1;
  const scored = (about) => trials.map((trial) => {
    const has = trial.score && about.name in trial.score;
    const value = has ? trial.score[about.name] ?? about.infinite ?? null : undefined;
    return h("span", { class: value !== undefined && value === best(about) && differ(about) ? "ok" : "" }, has ? measure(trial.score[about.name], about) : "–");
  });

  const layers = card("SQNR layer by layer", { wide: true, id: "ratios" }, h("div", {}, h("p", { class: "soft small" }, "Measuring…")));
  const tools = h("div", { class: "acts" }, h("button", { onclick: () => save(new Blob([table()], { type: "text/csv" }), "compare.csv") }, "CSV"), h("button", { onclick: () => copy(location.href) }, "Copy link"));
  const body = trials.length < 2 ? [h("p", { class: "empty" }, "Tick trials in the table of a study, or add them here.")] : [
    card("Differences", { wide: true, id: "differences" }, scroller("Differences", h("table", { class: "sticky" }, heads("Field"), h("tbody", {},
      plainFields.map((field) => row(field, trials.map((trial) => plain(trial.qconfig[field])), { class: "differs", "data-field": field })),
      layerRows.map(([label, values]) => row(label, values, { class: "differs", "data-field": label })),
      plainFields.length + layerRows.length ? null : h("tr", {}, h("td", { colspan: trials.length + 1, class: "empty" }, "the configurations are equal")))))),
    card("Scores", { wide: true }, scroller("Scores", h("table", { class: "sticky" }, heads("Measure"), h("tbody", {}, scores.map((about) => row(about.words, scored(about), { "data-measure": about.name })))))),
    layers,
    card("Same in all", { wide: true }, h("details", {}, h("summary", {}, `${fields.length - differing.length} fields`), scroller("Same in all", h("table", {}, h("tbody", {}, fields.filter((field) => !differing.includes(field)).map((field) => row(field, [plain(trials[0].qconfig[field])]))))))),
  ];
  page.show(h("div", { class: "head" }, h("h1", {}, "Compare trials"), tools),
    h("div", { class: "under chips" }, trials.map((trial, i) => h("span", { class: "picked" }, link(`/studies/${trial.key}`, trial.study.name), ` #${trial.number} `, trialChip(trial.state, trial.study), " ", limitsLine(trial.study, trial.score), " ",
      h("button", { class: "tiny", "aria-label": `Remove ${trial.study.name} ${trial.number}`, onclick: () => go(path(given.filter((_, at) => at !== i).map(([, key, at]) => [key, at]))) }, "×")))),
    await adder(given, path), h("div", { class: "grid" }, body));
  let found = [];
  if (trials.length > 1) await drawLayers();

  function table() {
    const rows = [["", ...trials.map((trial) => `${trial.study.name} #${trial.number}`)]];
    for (const about of scores) rows.push([about.name, ...trials.map((trial) => trial.score?.[about.name] ?? "")]);
    for (const field of fields.filter((each) => each !== "layers")) rows.push([field, ...trials.map((trial) => plain(trial.qconfig[field]))]);
    for (const [label, values] of layerRows) rows.push([label, ...values]);
    for (const label of labels()) rows.push([`${label} SQNR as it arrives (dB)`, ...found.map((one) => one?.layers.find((layer) => layer.name === label)?.upstream_db ?? "")]);
    return csv(rows);
  }

  function labels() {
    return [...new Set(found.flatMap((one) => one?.layers.map((layer) => layer.name) ?? []))];
  }

  async function drawLayers() {
    const { Plot, markers } = await charts();
    const told = [];
    found = await Promise.all(trials.map(async (trial) => {
      if (!trial.can_measure) return null;
      try {
        return await get(`/studies/${trial.key}/trials/${trial.number}/layers`);
      } catch (error) {
        told.push(`${name(trial)}: ${error.what}`);
        return null;
      }
    }));
    if (!page.current()) return;
    const known = trials.map((trial, i) => [trial, found[i]]).filter(([, one]) => one);
    if (!known.length) {
      replace(layers.lastChild, h("p", { class: "soft" }, "The files of these trials are not on this machine: start the dashboard on the folder of their run folders."), told.map((words2) => h("p", { class: "soft small" }, words2)));
      return;
    }
    const figure = (one, label) => one?.layers.find((layer) => layer.name === label)?.upstream_db ?? null;
    const rows = labels().map((label) => ({ label, values: known.map(([, one]) => figure(one, label)) }));
    rows.push({ label: "outputs", values: known.map(([, one]) => one.output_db) });
    const plot = new Plot({ name: "layers", title: "SQNR of what the layers read", settings, draw: (each) => markers(each, known.map(([trial]) => name(trial)), rows, "dB") });
    page.onleave(() => plot.close());
    const delta = (values) => (known.length === 2 && values.every((value) => value !== null) ? signed(values[0] - values[1]) : "");
    replace(layers.lastChild, h("p", { class: "soft small" }, `Against the float model, of the inputs as they arrive. Further to the right less is lost. ${UNCHANGED}`), h("div", { class: "tools" }, plot.acts), plot.element,
      scroller("SQNR of layers", h("table", { class: "sticky" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Layer"), known.map(([trial]) => h("th", { scope: "col", class: "num" }, name(trial))), known.length === 2 ? h("th", { scope: "col", class: "num" }, "difference (dB)") : null)),
        h("tbody", {}, rows.map((each) => h("tr", { "data-layer-row": each.label }, h("th", { scope: "row" }, each.label), each.values.map((value) => h("td", { class: "num" }, value === null ? "–" : `${value.toFixed(2)} dB`)), known.length === 2 ? h("td", { class: "num" }, delta(each.values)) : null))))),
      told.map((words2) => h("p", { class: "soft small" }, words2)));
  }
}

function layersThatDiffer(trials) {
  const all = new Map();
  trials.forEach((trial, i) => Object.entries(trial.qconfig.layers ?? {}).forEach(([layer, fields]) => Object.entries(fields).forEach(([field, value]) => {
    const label = `layers.${layer}.${field}`;
    if (!all.has(label)) all.set(label, trials.map((each) => plain(each.qconfig[field])));
    all.get(label)[i] = plain(value);
  })));
  return [...all].filter(([, values]) => new Set(values).size > 1).sort();
}

async function adder(given, path) {
  if (given.length >= MOST) return null;
  const { studies } = await get("/studies?limit=100");
  const study = h("select", { "aria-label": "Study to add from" }, studies.map((each) => h("option", { value: each.key, selected: each.key === given[0]?.[1] }, each.name)));
  const at = h("input", { type: "number", min: 0, "aria-label": "Trial to add", placeholder: "trial", required: true });
  return h("form", { class: "tools", onsubmit: (event) => {
    event.preventDefault();
    go(path([...given.map(([, key, number_]) => [key, number_]), [study.value, at.value]]));
  } }, study, at, h("button", {}, "Add a trial"));
}

