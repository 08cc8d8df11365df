// One trial: scores, configuration, shards, layers, ranges, logs.

import { charts, get, post } from "../api.js";
import { card, chip, failed, h, link, problem, replace, scroller, toast } from "../../web/dom.js";
import { bytes, duration, measure, number, plain } from "../../web/format.js";
import { limitsLine, studyChip, trialChip, verdictLine } from "../../web/head.js";
import { notesCard } from "../notes.js";
import { again, go, settings } from "../router.js";

const AGAIN_MS = 2000;

export async function trialPage(page, key, text) {
  const here = Number(text);
  const [study, trial] = await Promise.all([get(`/studies/${key}`), get(`/studies/${key}/trials/${here}`)]);
  page.crumbs([study.name, `/studies/${key}`], [`trial ${here}`]);
  const ranges = card("Ranges seen in calibration", { wide: true }, h("p", { class: "soft small" },
    trial.has_ranges ? "Reading the statistics…" : "Its statistics are not on this machine: start the dashboard on the folder of its run folders."));
  const ratios = trial.can_measure ? card("SQNR layer by layer", { wide: true, id: "ratios" }, h("div", {}, h("p", { class: "soft small" }, "Measuring…"))) : null;
  const layers = study.layer_kinds.length ? card("Sensitivity of the layers, of the whole study", { wide: true }, h("div", {})) : null;
  page.show(heading(key, study, trial),
    h("div", { class: "grid" }, failure(trial), scores(study, trial), facts(trial),
      configuration(trial), study.can_change ? tryCard(key, trial) : null, shards(study, trial), ratios, layers, ranges, study.can_change ? notesCard(key, here, trial, () => again()) : null, logs(trial)));
  const plots = [];
  page.onleave(() => plots.forEach((plot) => plot.close()));
  if (ratios || layers || trial.has_ranges) {
    const drawing = await charts();
    const ours = `/studies/${key}/trials/${here}`;
    if (ratios) fill(ratios, `${ours}/layers`, (found) => drawRatios(drawing, ratios, found, plots));
    if (layers) fill(layers, `/studies/${key}/layers`, (found) => drawLayers(drawing, layers, found, study, plots));
    if (trial.has_ranges) fill(ranges, `${ours}/histograms`, (found) => drawRanges(drawing, ranges, found));
  }
  if (["waiting", "running"].includes(trial.state)) {
    const timer = setInterval(async () => {
      try {
        const now = await get(`/studies/${key}/trials/${here}`);
        if (page.current() && JSON.stringify(now) !== JSON.stringify(trial)) again();
      } catch {
        // Asked again soon.
      }
    }, AGAIN_MS);
    page.onleave(() => clearInterval(timer));
  }
}

function heading(key, study, trial) {
  const path = (value) => `/studies/${key}/trials/${value}`;
  const input = h("input", { type: "number", min: 0, id: "with", required: true, placeholder: String(study.best?.number ?? 0) });
  const form = h("form", {
    class: "acts",
    onsubmit: (event) => {
      event.preventDefault();
      go(`/compare?trial=${key}:${trial.number}&trial=${key}:${input.value}`);
    },
  }, h("label", { for: "with" }, "Compare with trial"), input, h("button", {}, "Compare"),
  trial.number > 0 ? link(path(trial.number - 1), "Previous", { class: "button" }) : null,
  trial.number + 1 < Object.values(study.counts).reduce((sum, count) => sum + count, 0)
    ? link(path(trial.number + 1), "Next", { class: "button" }) : null);
  return [h("div", { class: "head" }, h("h1", {}, `Trial ${trial.number}`), trialChip(trial.state, study), limitsLine(study, trial.score),
    trial.is_best ? chip("best", "best of the study") : null, trial.front ? chip("front", "on the front") : null, trial.from_store ? chip("", "known from the store") : null,
    trial.tags.map((tag) => chip("tag", tag)), form),
  h("p", { class: "under" }, trial.stage === "tried" ? "tried as was asked for · " : `stage ${trial.stage} · batch ${trial.batch} · `, `${trial.attempts} attempt${trial.attempts === 1 ? "" : "s"}`,
    trial.lost_workers ? ` · ${trial.lost_workers} workers lost` : "", trial.note ? ` · ${trial.note}` : "", " · study ", link(`/studies/${key}`, study.name), " ", studyChip(study), " ", verdictLine(study))];
}

function failure(trial) {
  if (!trial.error) return null;
  return card("Why it ended so", { wide: true }, problem({ what: trial.error, where: trial.error_where, fix: trial.error_fix }));
}

function scores(study, trial) {
  const shown = study.measures.filter((each) => trial.score && each.name in trial.score);
  const value = (score, each) => (score && each.name in score ? measure(score[each.name], each) : "–");
  const range = (each) => (trial.intervals[each.name] ? trial.intervals[each.name].map((end) => measure(end, each)).join(" to ") : "");
  const limit = (each) => study.limits.filter((one) => one.name === each.name).map((one) => one.words.replace(`${each.words} `, "")).join(", ");
  const body = shown.map((each) => h("tr", { "data-measure": each.name }, h("th", { scope: "row" }, each.words),
    h("td", { class: "num" }, value(trial.score, each)), h("td", { class: "num soft" }, range(each)),
    h("td", { class: "num soft" }, value(study.baseline, each)), h("td", { class: "num soft" }, limit(each))));
  return card("Scores", {}, shown.length ? scroller("Scores", h("table", {}, h("thead", {}, h("tr", {},
    ["Measure", `Trial ${trial.number}`, "95 % interval", "Float model", "Limit"].map((words, i) => h("th", { scope: "col", class: i ? "num" : "" }, words)))), h("tbody", {}, body)))
    : h("p", { class: "soft" }, ["waiting", "running"].includes(trial.state) ? "No score yet." : "It ended without a score."));
}

function facts(trial) {
  const rows = [["Samples scored", number(trial.samples)], ["Wall time", duration(trial.seconds)],
    ["CPU time", trial.from_store ? "none: known from the store" : duration(trial.cpu_s)],
    ["Peak memory of a worker", bytes(trial.peak_rss_bytes)],
    ["Hash of its outputs", trial.outputs_sha256?.slice(0, 16) ?? "–"], ["Hash of its configuration", trial.config_hash.slice(0, 16)]];
  return card("What it took", {}, scroller("What it took", h("table", {}, h("tbody", {}, rows.map(([words, value]) => h("tr", {}, h("th", { scope: "row" }, words), h("td", { class: "num" }, value)))))));
}

function configuration(trial) {
  const names = Object.keys(trial.qconfig);
  const rest = names.filter((name) => !(name in trial.params)).sort();
  const table = (chosen) => h("table", {}, h("tbody", {}, chosen.map((name) => h("tr", { "data-field": name }, h("th", { scope: "row" }, name), h("td", {}, plain(name in trial.qconfig ? trial.qconfig[name] : trial.params[name]))))));
  return card("Configuration", { wide: !trial.shards.length }, scroller("Searched fields", table(Object.keys(trial.params))),
    h("details", {}, h("summary", {}, `All ${names.length} fields`), scroller("Other fields", table(rest))));
}

// Its fields, to be changed and evaluated next.
function tryCard(key, trial) {
  const given = Object.fromEntries(Object.keys(trial.params).filter((name) => name in trial.qconfig).map((name) => [name, trial.qconfig[name]]));
  const fields = h("textarea", { id: "fields", rows: Math.min(Object.keys(given).length + 2, 16), spellcheck: "false" });
  fields.value = JSON.stringify(given, null, 1);
  async function ask(event) {
    event.preventDefault();
    try {
      const { listening } = await post(`/studies/${key}/tries`, { trial: trial.number, fields: read(fields.value) });
      toast(listening ? "it is evaluated next" : "kept: it is evaluated when the search runs again");
    } catch (error) {
      failed(error);
    }
  }
  return card("Try this", { id: "try" }, h("form", { onsubmit: ask, class: "form" },
    h("label", { for: "fields" }, "Fields that may differ from this trial, as JSON; any other field of the configuration may be added."), fields, h("button", {}, "Try this")));
}

function read(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw Object.assign(new Error(), { what: `this is no JSON: ${error.message}`, where: "Try this", fix: 'Write {"calibrate_mode": "max"}.' });
  }
}

function shards(study, trial) {
  if (!trial.shards.length) return null;
  const shown = study.measures.filter((each) => trial.shards.some((shard) => each.name in shard.score && (shard.score[each.name] !== null || each.name === "sqnr_db")));
  return card("Scores by shard", {}, scroller("Scores by shard", h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Shard"),
    h("th", { scope: "col", class: "num" }, "Samples"), shown.map((each) => h("th", { scope: "col", class: "num" }, each.words)),
    h("th", { scope: "col", class: "num" }, "CPU"))),
  h("tbody", {}, trial.shards.map((shard) => h("tr", {}, h("td", {}, `${shard.shard + 1}/${shard.shards}`),
    h("td", { class: "num" }, shard.samples), shown.map((each) => h("td", { class: "num" }, measure(shard.score[each.name], each))),
    h("td", { class: "num" }, duration(shard.cpu_s))))))));
}

// Draws what the server answers in a card; an error stands where the answer would.
async function fill(box, path, draw) {
  let found;
  try {
    found = await get(path);
  } catch (error) {
    replace(box.lastChild, problem(error.status ? error : { what: "no answer from the server", fix: "Reload the page." }));
    return;
  }
  draw(found);
}

function drawRatios({ Plot, markers }, box, found, plots) {
  const row = (layer) => ({ label: layer.name, values: [layer.weights_db, layer.alone_db, layer.upstream_db], note: layer.upstream_db === null ? "" : layer.upstream_db.toFixed(1) });
  const rows = [...found.layers.map(row), { label: "outputs", values: [null, null, found.output_db], note: found.output_db === null ? "" : found.output_db.toFixed(1) }];
  const plot = new Plot({ name: "layers", title: "SQNR of what the layers read", settings, draw: (each) => markers(each, ["weights", "inputs alone", "with all before"], rows, "dB") });
  plots.push(plot);
  box.querySelector("header").append(h("div", { class: "acts" }, plot.acts));
  replace(box.lastChild, h("p", { class: "soft small" }, "Against the float model, measured now on the first calibration inputs. The further to the right, the less is lost; the figure is that of the inputs as they arrive. A layer without one reads values as the one before gave them."), plot.element);
}

function drawLayers({ layersPlot }, box, layers, study, plots) {
  for (const kind of study.layer_kinds) {
    const plot = layersPlot({ layers }, kind, settings);
    plots.push(plot);
    box.lastChild.append(h("div", { class: "tools" }, plot.acts), plot.element);
  }
}

function drawRanges({ histogram }, box, found) {
  const figures = found.points.map((point) => h("figure", { "data-point": point.label }, h("figcaption", { title: point.label }, rangeOf(point)), histogram(point),
    h("figcaption", {}, `${number(point.low)} … ${number(point.high)}`,
      point.threshold_high === null ? "" : `, kept ${number(point.threshold_low)} … ${number(point.threshold_high)}`)));
  replace(box.lastChild, "Values on a logarithmic scale; lines are the ends of the range that this configuration keeps.");
  box.lastChild.after(h("div", { class: "hists" }, figures));
}

// The operator that gives the values, and the layers that read them.
function rangeOf(point) {
  const readers = point.readers.filter(Boolean);
  return `${point.label.replace(/^(\d+): call of /, "$1: ")}${readers.length ? `, read by ${readers.join(", ")}` : ""}`;
}

function logs(trial) {
  if (!trial.logs.length) return null;
  return card("Log", { wide: true }, trial.logs.map((log) => [h("h3", {}, log.source),
    h("pre", { class: "log", tabindex: "0", role: "group", "aria-label": `Log of ${log.source}` }, log.excerpt)]));
}
