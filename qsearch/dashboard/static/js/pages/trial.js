// One trial: scores, configuration, shards, layers, ranges, logs; beside another one if asked.

import { get, query } from "../api.js";
import { card, chip, h, link, problem, replace, scroller, select } from "../dom.js";
import { bytes, duration, measure, number, plain } from "../format.js";
import { Plot, svgOf } from "../plot.js";
import { again, go } from "../router.js";

const AGAIN_MS = 2000;

export async function trialPage(page, key, text) {
  const here = Number(text);
  const asked = new URLSearchParams(location.search).get("with");
  const other = asked !== null && /^\d+$/.test(asked) ? Number(asked) : null;
  const [study, trial, second] = await Promise.all([
    get(`/studies/${key}`), get(`/studies/${key}/trials/${here}`),
    other === null ? null : get(`/studies/${key}/trials/${other}`)]);
  page.crumbs([study.name, `/studies/${key}`], [`trial ${here}`]);
  const ranges = card("Ranges seen in calibration", { wide: true }, h("p", { class: "soft small" },
    trial.has_ranges ? "Reading the statistics…" : "Its statistics are not on this machine: start the dashboard on the folder of its run folders."));
  const layers = layersCard(key, study);
  const ratios = ratiosCard(key, trial, second);
  page.show(heading(key, study, trial, second),
    h("div", { class: "grid" }, failure(trial), scores(study, trial, second), facts(trial, second),
      configuration(study, trial, second), shards(study, trial), ratios?.card, layers?.card, ranges, logs(trial)));
  const drawings = [...(ratios?.plots ?? []), ...(layers ? [layers.plot] : [])];
  drawings.forEach((plot) => plot.update(study.version));
  page.onleave(() => drawings.forEach((plot) => plot.close()));
  if (trial.has_ranges) drawRanges(ranges, key, here);
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

function heading(key, study, trial, second) {
  const path = (value) => `/studies/${key}/trials/${value}`;
  const input = h("input", { type: "number", min: 0, value: second?.number ?? "", id: "with", placeholder: String(study.best?.number ?? 0) });
  const form = h("form", {
    class: "acts",
    onsubmit: (event) => {
      event.preventDefault();
      go(input.value === "" ? path(trial.number) : `${path(trial.number)}?${query({ with: input.value })}`);
    },
  }, h("label", { for: "with" }, "Compare with trial"), input, h("button", {}, "Compare"),
  trial.number > 0 ? link(path(trial.number - 1), "Previous", { class: "button" }) : null,
  trial.number + 1 < Object.values(study.counts).reduce((sum, count) => sum + count, 0)
    ? link(path(trial.number + 1), "Next", { class: "button" }) : null);
  return [h("div", { class: "head" }, h("h1", {}, `Trial ${trial.number}`), chip(trial.state),
    trial.is_best ? chip("best", "best of the study") : null, trial.from_store ? chip("", "known from the store") : null, form),
  h("p", { class: "under" }, `stage ${trial.stage} · batch ${trial.batch} · ${trial.attempts} attempt${trial.attempts === 1 ? "" : "s"}`,
    trial.lost_workers ? ` · ${trial.lost_workers} workers lost` : "")];
}

function failure(trial) {
  if (!trial.error) return null;
  return card("Why it ended so", { wide: true }, problem({ what: trial.error, where: trial.error_where, fix: trial.error_fix }));
}

function scores(study, trial, second) {
  const shown = study.measures.filter((each) => trial.score && each.name in trial.score);
  const value = (score, each) => (score && each.name in score ? measure(score[each.name], each) : "–");
  const body = shown.map((each) => h("tr", { "data-measure": each.name }, h("th", { scope: "row" }, each.words),
    h("td", { class: "num" }, value(trial.score, each)),
    second ? h("td", { class: "num" }, value(second.score, each)) : null,
    h("td", { class: "num soft" }, value(study.baseline, each))));
  return card("Scores", {}, shown.length ? scroller("Scores", h("table", {}, h("thead", {}, h("tr", {}, h("td", {}),
    h("th", { scope: "col", class: "num" }, `Trial ${trial.number}`),
    second ? h("th", { scope: "col", class: "num" }, `Trial ${second.number}`) : null,
    h("th", { scope: "col", class: "num" }, "Float model"))), h("tbody", {}, body)))
    : h("p", { class: "soft" }, ["waiting", "running"].includes(trial.state) ? "No score yet." : "It ended without a score."));
}

function facts(trial, second) {
  const rows = [["Samples scored", (t) => number(t.samples)], ["Wall time", (t) => duration(t.seconds)],
    ["CPU time", (t) => (t.from_store ? "none: known from the store" : duration(t.cpu_s))],
    ["Peak memory of a worker", (t) => bytes(t.peak_rss_bytes)],
    ["Outputs", (t) => t.outputs_sha256?.slice(0, 16) ?? "–"], ["Configuration", (t) => t.config_hash.slice(0, 16)]];
  return card("What it took", {}, scroller("What it took", h("table", {}, second ? h("thead", {}, h("tr", {}, h("td", {}),
    [trial, second].map((each) => h("th", { scope: "col", class: "num" }, `Trial ${each.number}`)))) : null, h("tbody", {}, rows.map(([words, of]) => h("tr", {}, h("th", { scope: "row" }, words),
    h("td", { class: "num" }, of(trial)), second ? h("td", { class: "num" }, of(second)) : null))))));
}

function configuration(study, trial, second) {
  const names = Object.keys(trial.qconfig);
  const searched = names.filter((name) => name in trial.params);
  const rest = names.filter((name) => !(name in trial.params)).sort();
  const differs = (name) => second && JSON.stringify(trial.qconfig[name]) !== JSON.stringify(second.qconfig[name]);
  const row = (name) => h("tr", { class: differs(name) ? "differs" : "", "data-field": name }, h("th", { scope: "row" }, name),
    h("td", {}, plain(trial.qconfig[name])), second ? h("td", {}, plain(second.qconfig[name])) : null);
  const table = (chosen) => h("table", {}, h("thead", {}, h("tr", {}, h("td", {}), h("th", { scope: "col" }, `Trial ${trial.number}`),
    second ? h("th", { scope: "col" }, `Trial ${second.number}`) : null)), h("tbody", {}, chosen.map(row)));
  const moved = rest.filter(differs);
  return card("Configuration", { wide: !trial.shards.length }, scroller("Searched fields", table([...searched, ...moved])),
    h("details", {}, h("summary", {}, `All ${names.length} fields`), scroller("Other fields", table(rest.filter((name) => !moved.includes(name))))));
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

function ratiosCard(key, trial, second) {
  const shown = [trial, second].filter((each) => each?.can_measure);
  if (!shown.length) return null;
  const plots = shown.map((each) => new Plot(() => `/studies/${key}/trials/${each.number}/layers.svg`));
  plots.forEach((plot) => replace(plot.element, h("p", { class: "soft small" }, "Measuring…")));
  const parts = plots.map((plot, i) => [shown.length > 1 ? h("h3", {}, `Trial ${shown[i].number}`) : null, plot.element]);
  return { plots, card: card("SQNR layer by layer", { wide: true, id: "ratios" },
    h("p", { class: "soft small" }, "Against the float model, measured now on the first calibration inputs. The further to the right, the less is lost; the figure is that of the inputs as they arrive."), parts) };
}

function layersCard(key, study) {
  if (!study.layer_kinds.length) return null;
  const kind = { y: study.layer_kinds.includes("sensitivity") ? "sensitivity" : study.layer_kinds[0] };
  const plot = new Plot(() => `/studies/${key}/plots/layers.svg?${query(kind)}`);
  const acts = [select("Kind of figures", study.layer_kinds.map((each) => [each, each]), kind.y, (value) => { kind.y = value; plot.draw(); })];
  return { plot, card: card("Sensitivity of the layers, of the whole study", { wide: true, acts }, plot.element) };
}

async function drawRanges(box, key, here) {
  const target = box.lastChild;
  try {
    const found = await get(`/studies/${key}/trials/${here}/histograms`);
    const figures = found.points.map((point) => h("figure", { "data-point": point.label }, h("figcaption", { title: point.label }, point.label), svgOf(point.svg),
      h("figcaption", {}, `${number(point.low)} … ${number(point.high)}`,
        point.threshold_high === null ? "" : `, kept ${number(point.threshold_low)} … ${number(point.threshold_high)}`)));
    replace(target, h("p", { class: "soft small" }, "Values on a logarithmic scale; lines are the ends of the range that this configuration keeps."));
    target.after(h("div", { class: "hists" }, figures));
  } catch (error) {
    if (error.status) replace(target, error.what, error.fix ? `; ${error.fix}` : "");
  }
}

function logs(trial) {
  if (!trial.logs.length) return null;
  return card("Log", { wide: true }, trial.logs.map((log) => [h("h3", {}, log.source),
    h("pre", { class: "log", tabindex: "0" }, log.excerpt)]));
}
