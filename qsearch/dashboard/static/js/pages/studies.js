// Every study: how it stands, how far it is, its best.

import { get } from "../api.js";
import { h, link, replace, studyChip } from "../dom.js";
import { ago, measure } from "../format.js";
import { sparkline } from "../plot.js";
import { go } from "../router.js";

const EVERY_MS = 3000;
const PER_PAGE = 50;

export async function studiesPage(page) {
  let offset = 0;
  const body = h("tbody", {});
  const count = h("span", { class: "soft small" });
  const acts = h("div", { class: "acts" });
  const pages = h("div", { class: "tools" });
  const table = h("table", { class: "studies" }, h("thead", {}, h("tr", {},
    ["Study", "State"].map((words) => h("th", { scope: "col" }, words)),
    h("th", { scope: "col" }, "Progress"),
    h("th", { scope: "col", class: "num" }, "Best"),
    h("th", { scope: "col", class: "extra" }, "Best so far"),
    h("th", { scope: "col", class: "num extra" }, "Float model"),
    h("th", { scope: "col", class: "extra" }, "Changed"))), body);
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Studies" }, table);
  const empty = h("div", { class: "empty", hidden: true });
  const box = h("section", { class: "card" }, scroll, empty, pages);

  async function refresh() {
    const found = await get(`/studies?offset=${offset}&limit=${PER_PAGE}`);
    replace(body, found.studies.map(row));
    count.textContent = found.total === 1 ? "1 study" : `${found.total} studies`;
    replace(acts, found.allow_launch ? link("/launch", "New search", { class: "button primary" }) : null);
    scroll.hidden = !found.total;
    empty.hidden = Boolean(found.total);
    replace(empty, h("p", {}, "No study yet."), h("p", { class: "small" }, "Start one: ",
      h("span", { class: "mono" }, "qsearch launch --model digits")));
    replace(pages, found.total <= PER_PAGE ? null : h("div", { class: "pages" },
      h("button", { disabled: offset === 0, onclick: () => { offset -= PER_PAGE; refresh(); } }, "Newer"),
      h("button", { disabled: offset + PER_PAGE >= found.total, onclick: () => { offset += PER_PAGE; refresh(); } }, "Older")));
  }

  page.crumbs();
  await refresh();
  page.show(h("div", { class: "head" }, h("h1", {}, "Studies"), count, acts), h("p", { class: "under" }), box);
  const timer = setInterval(async () => {
    try {
      await refresh();
      page.link("live");
    } catch {
      page.link("lost");
    }
  }, EVERY_MS);
  page.link("live");
  page.onleave(() => clearInterval(timer));
}

function row(study) {
  const path = `/studies/${study.key}`;
  const bar = h("span", {});
  bar.style.width = `${Math.min(100, (100 * study.finished) / Math.max(study.target_trials, 1))}%`;
  const base = study.baseline?.[study.measure.name];
  return h("tr", { class: "link-row", "data-study": study.key, onclick: (event) => { if (!event.target.closest("a")) go(path); } },
    h("td", {}, link(path, study.name), h("div", { class: "small soft" }, study.model)),
    h("td", {}, studyChip(study)),
    h("td", {}, `${study.finished} / ${study.target_trials}`, h("div", { class: "meter", "aria-hidden": "true" }, bar)),
    h("td", { class: "num" }, study.best ? measure(study.best.value, study.measure) : "–",
      h("div", { class: "small soft" }, study.measure.words)),
    h("td", { class: "extra" }, sparkline(study.spark)),
    h("td", { class: "num extra" }, base === undefined ? "–" : measure(base, study.measure)),
    h("td", { class: "extra soft when" }, ago(study.updated_at)));
}
