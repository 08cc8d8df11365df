// Every study: how it stands, how far it is, its best. Search, order and page stand in the address.

import { get, query } from "../api.js";
import { chip, h, link, meter, replace, select, sparkline } from "../../web/dom.js";
import { ago, measure, number, signed } from "../../web/format.js";
import { studyChip, verdictLine } from "../../web/head.js";
import { asked, go, keep } from "../router.js";

const EVERY_MS = 3000;
const PER_PAGE = 50;
const SQNR = { unit: "dB", infinite: Infinity };
const SIZE = { unit: "bytes" };
const STATES = ["", "running", "paused", "complete", "stopped", "failed"];
const COLUMNS = [["name", "Study"], ["state", "State"], [null, "Progress"], [null, "Best", "num"], [null, "Float model", "num extra"], [null, "SQNR", "num extra"], [null, "Size", "num extra"], [null, "Best so far", "extra"], ["changed", "Changed", "extra"]];

export async function studiesPage(page) {
  let timer = 0;
  const body = h("tbody", {});
  const head = h("tr", {});
  const count = h("span", { class: "soft small", role: "status" });
  const acts = h("div", { class: "acts" });
  const pages = h("div", { class: "tools" });
  const find = h("input", { type: "search", placeholder: "Find a study or model", "aria-label": "Find studies", value: asked("find"),
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => choose({ find: find.value }), 250);
    } });
  const state = select("State", STATES.map((each) => [each, each || "all states"]), asked("state"), (value) => choose({ state: value }));
  const device = h("span", {});
  const table = h("table", { class: "studies" }, h("thead", {}, head), body);
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Studies" }, table);
  const empty = h("div", { class: "empty", hidden: true });
  const box = h("section", { class: "card", "aria-label": "Studies" }, h("div", { class: "tools" }, find, state, device), scroll, empty, pages);

  function choose(values) {
    keep({ page: "", ...values });
    return refresh();
  }

  async function refresh() {
    const sort = asked("sort", "-changed");
    const at = Math.max(1, Number(asked("page", "1")) || 1);
    const found = await get(`/studies?${query({ offset: (at - 1) * PER_PAGE, limit: PER_PAGE, find: asked("find"), state: asked("state"), device: asked("device"), sort })}`);
    if (!device.contains(document.activeElement)) {
      replace(device, found.devices.length < 2 ? null
        : select("Device", ["", ...found.devices].map((each) => [each, each || "all devices"]), asked("device"), (value) => choose({ device: value })));
    }
    replace(head, COLUMNS.map(([column, words, kind]) => {
      const chosen = column && sort.replace(/^-/, "") === column;
      const down = sort.startsWith("-");
      return h("th", { scope: "col", class: kind ?? "", "aria-sort": chosen ? (down ? "descending" : "ascending") : null },
        column ? h("button", { type: "button", onclick: () => choose({ sort: chosen && !down ? `-${column}` : column }) }, words, chosen ? (down ? " ↓" : " ↑") : "") : words);
    }));
    replace(body, found.studies.map(row));
    count.textContent = found.total === 1 ? "1 study" : `${found.total} studies`;
    replace(acts, found.has_queue ? link("/queue", "Queue", { class: "button" }) : null,
      found.allow_launch ? link("/launch", "New search", { class: "button primary" }) : null);
    scroll.hidden = !found.total;
    empty.hidden = Boolean(found.total);
    replace(empty, find.value || asked("state") || asked("device") ? h("p", {}, "No study passes.") : [h("p", {}, "No study yet."), h("p", { class: "small" }, "Start one: ",
      h("span", { class: "mono" }, "qsearch launch --model digits"))]);
    replace(pages, found.total <= PER_PAGE ? null : h("div", { class: "pages" },
      h("button", { class: "tiny", disabled: at === 1, onclick: () => choose({ page: String(at - 1) }) }, "Previous"),
      h("button", { class: "tiny", disabled: at * PER_PAGE >= found.total, onclick: () => choose({ page: String(at + 1) }) }, "Next")));
  }

  page.crumbs();
  await refresh();
  page.show(h("div", { class: "head" }, h("h1", {}, "Studies"), count, acts), h("p", { class: "under" }), box);
  page.poll(refresh, EVERY_MS);
  page.onleave(() => clearTimeout(timer));
}

function scored(study, name, about) {
  return study.best && name in study.best.score ? measure(study.best.score[name], about) : "–";
}

// What the best has lost or won against the float model.
function change(study, base) {
  const value = study.best?.value;
  if (study.measure.unit !== "%" || typeof value !== "number" || typeof base !== "number") return null;
  return h("div", { class: "small soft" }, `${signed(100 * (value - base))} points`);
}

function row(study) {
  const path = `/studies/${study.key}`;
  const base = study.baseline?.[study.measure.name];
  return h("tr", { class: "link-row", "data-study": study.key, onclick: (event) => { if (!event.target.closest("a")) go(path); } },
    h("td", {}, link(path, study.name), h("div", { class: "small soft", title: study.model }, study.model.split(/[\\/]/).pop(), study.device === "qmod" ? null : ` for ${study.device}`, study.tags.map((tag) => [" ", chip("tag", tag)]))),
    h("td", {}, studyChip(study), h("div", { class: "small" }, study.verdict.state === "open" ? null : verdictLine(study), study.proof === "proved" ? h("span", { class: "ok" }, " · proved") : null)),
    h("td", { class: "progressed" }, `${number(study.finished)} / ${number(study.target_trials)}`, meter(study.finished, study.target_trials)),
    h("td", { class: "num" }, study.best ? measure(study.best.value, study.measure) : "–",
      h("div", { class: "small soft" }, study.front.length ? `${study.measure.words}, front of ${study.front.length}` : study.measure.words)),
    h("td", { class: "num extra" }, base === undefined ? "–" : measure(base, study.measure), change(study, base)),
    h("td", { class: "num extra" }, scored(study, "sqnr_db", SQNR)),
    h("td", { class: "num extra" }, scored(study, "model_bytes", SIZE), study.module_bytes ? h("div", { class: "small" }, link(`/api/v1${path}/files/best.qmod`, ".qmod", { download: true })) : null),
    h("td", { class: "extra" }, sparkline(study.spark)),
    h("td", { class: "extra soft when" }, ago(study.updated_at)));
}
