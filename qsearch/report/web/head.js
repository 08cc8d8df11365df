// The result of a study in words, the same on every page and in the report.

import { chip, copy, h, link, meter } from "./dom.js";
import { bytes, duration, isInfinite, labelOf, measure, number, signed } from "./format.js";

const MARKS = { met: "✓", missed: "✗", none: "✗", open: "…" };

// A search whose driver is gone is not running, whatever it last wrote of itself.
export function studyChip(study) {
  if (study.verdict.state === "missed") return chip("missed", `${study.state}, missed`);
  if (study.state !== "running") return chip(study.state);
  if (study.silent) return chip("idle", "no driver");
  return study.listening && study.phase.startsWith("searching") ? chip("running") : chip("waiting", study.phase);
}

// A trial that ran when its driver ended does not run.
export function trialChip(state, study) {
  return study.silent && state === "running" ? chip("idle", "interrupted") : chip(state);
}

export function verdictLine(study) {
  return h("span", { class: `verdict ${study.verdict.state}`, "data-verdict": study.verdict.state },
    h("span", { "aria-hidden": "true" }, MARKS[study.verdict.state]), ` ${study.verdict.words}`);
}

// The limits of its study that a trial does not keep; ``value(name)`` is the trial's figure.
export function brokenLimits(study, value) {
  return study.limits.filter((limit) => {
    const found = value(limit.name);
    // Fractions of a few hundred samples: the last bit must not decide.
    const near = 1e-9 * Math.max(1, Math.abs(limit.limit));
    return typeof found !== "number" || (limit.sign === "≥" ? found < limit.limit - near : found > limit.limit + near);
  });
}

// What a trial keeps of the limits, which may differ from the verdict on its study.
export function limitsLine(study, score) {
  if (!score || !study.limits.length) return null;
  const infinite = new Map(study.measures.map((each) => [each.name, each.infinite]));
  const broken = brokenLimits(study, (name) => (name in score ? score[name] ?? infinite.get(name) : undefined));
  return h("span", { class: `verdict ${broken.length ? "missed" : "met"}`, "data-limits": broken.length ? "broken" : "kept" },
    broken.length ? `✗ not ${broken.map((each) => each.words).join(", ")}` : "✓ within limits");
}

export function objectiveWords(study) {
  return study.objectives.map((each) => `${each.smaller_is_better ? "least" : "most"} ${each.words}`).join(", then ");
}

// What counts of a trial: objectives first, then accuracy, SQNR, size, latency where measured.
function headMeasures(study) {
  const wanted = [...study.objectives.map((each) => each.name), study.measure.name, study.accuracy, ...study.limits.map((each) => each.name), "sqnr_db", "worst_output_db", "model_bytes", "latency_ms", "hw_cycles"];
  const known = new Map((study.measures ?? study.objectives).map((each) => [each.name, each]));
  return [...new Set(wanted)].filter((name) => known.has(name)).map((name) => known.get(name));
}

function interval(found, about) {
  if (!found) return "";
  return `95 %: ${measure(found[0], about)} to ${measure(found[1], about)}`;
}

function scored(score, about) {
  return score && about.name in score ? measure(score[about.name], about) : "–";
}

// ``trialPath``: the address of a trial, or null where trials have no page.
export function resultHead(study, trialPath, { downloads = null } = {}) {
  const best = study.best;
  const proof = { proved: h("span", { class: "chip complete", "data-proof": "proved" }, "proved: integers only, no overflow"), refuted: h("span", { class: "chip failed" }, "refuted") }[study.proof];
  const bestLink = typeof best?.number === "number" ? (trialPath ? link(trialPath(best.number), `trial ${best.number}`) : `trial ${best.number}`) : null;
  const tiles = headMeasures(study).map((about) => {
    const base = study.baseline && about.name in study.baseline ? study.baseline[about.name] : undefined;
    const value = best?.score[about.name];
    const exact = base !== undefined && base !== null && about.unit === "%" && typeof value === "number";
    const delta = exact ? `${signed(100 * (value - base))} points` : "";
    const range = best && !isInfinite(value ?? 0, about) ? interval(best.intervals[about.name], about) : "";
    return h("div", { class: "tile", "data-measure": about.name }, h("div", { class: "name", title: about.meaning || null }, about.words),
      h("div", { class: "big", "data-tile": about.name === study.measure.name ? "best" : about.name }, scored(best?.score, about)),
      range ? h("div", { class: "note" }, range) : null,
      about.name === "model_bytes" && study.module_bytes ? h("div", { class: "note", "data-tile": "file" }, `constants; the .qmod ${bytes(study.module_bytes)}`) : null,
      base === undefined ? null : h("div", { class: "note", title: interval(study.baseline_intervals[about.name], about) || null }, "float ",
        h("span", { "data-tile": about.name === study.measure.name ? "float" : null }, measure(base, about)), delta ? ` · ${delta}` : ""));
  });
  return h("section", { class: "card result", "aria-label": "Result" },
    h("div", { class: "verdict-row" }, study.verdict ? verdictLine(study) : null, proof ?? null, study.note ? h("span", { class: "soft" }, study.note) : null, study.tags.map((tag) => chip("tag", tag))),
    h("p", { class: "small soft" }, objectiveWords(study), bestLink ? [" · best: ", bestLink] : "", best?.breaks.length ? ` (breaks ${best.breaks.join(" and ")})` : "", best?.luck ? ` (${best.luck})` : "",
      study.limits.length ? [" · limits: ", study.limits.map((limit, i) => [i ? ", " : "", h("span", { class: limit.kept === false ? "bad" : limit.kept ? "ok" : "" }, `${limit.words}${limit.kept === false ? " ✗" : limit.kept ? " ✓" : ""}`)])] : ""),
    (best?.beside ?? []).map((line) => h("p", { class: "small soft" }, line)),
    h("div", { class: "tiles" }, tiles),
    study.front.length ? frontTable(study, trialPath) : null,
    downloads ? h("div", { class: "tools downloads" }, h("span", { class: "soft small" }, "Download"), downloads) : null,
    study.resume ? h("div", { class: "tools" }, h("span", { class: "soft small" }, "Continue with"), h("code", { class: "mono", "data-resume": true }, study.resume), h("button", { class: "tiny", onclick: () => copy(study.resume) }, "Copy")) : null);
}

function frontTable(study, trialPath) {
  const shown = [...study.objectives, ...headMeasures(study).filter((each) => !study.objectives.some((other) => other.name === each.name))];
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Front" }, h("table", { class: "front" },
    h("caption", {}, `The front: ${study.front.length} trial${study.front.length === 1 ? "" : "s"} that no other beats in ${study.objectives.map((each) => each.words).join(" and ")}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Trial"), shown.map((about) => h("th", { scope: "col", class: "num" }, labelOf(about))))),
    h("tbody", {}, study.front.slice(0, 20).map((each) => h("tr", { "data-front": each.number },
      h("td", {}, trialPath ? link(trialPath(each.number), `#${each.number}`) : `#${each.number}`), shown.map((about) => h("td", { class: "num" }, scored(each.score, about))))))));
}

export function progressOf(study) {
  const left = study.target_trials - study.finished;
  const goes = study.state === "running" && study.listening && study.rate_per_min > 0 && left > 0;
  const others = Object.entries(study.counts).map(([state, count]) => `${number(count)} ${study.silent && state === "running" ? "interrupted" : state}`).join(", ");
  const rate = study.rate_per_min ? `${study.rate_per_min.toFixed(1)} trials/min` : "";
  return h("div", { class: "progress" }, h("strong", { "data-tile": "progress" }, `${number(study.finished)} / ${number(study.target_trials)}`), meter(study.finished, study.target_trials),
    h("span", { class: "small soft" }, [others, rate, goes ? `${duration((60 * left) / study.rate_per_min)} left` : "", study.state === "running" && !study.silent ? study.phase : ""].filter(Boolean).join(" · ")));
}
