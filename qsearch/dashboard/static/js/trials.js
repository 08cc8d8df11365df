// The table of trials; sorting, filtering and paging happen in the server.

import { get, query } from "./api.js";
import { chip, h, link, replace } from "./dom.js";
import { duration, measure, plain } from "./format.js";
import { go } from "./router.js";

const PER_PAGE = 50;
const STATES = ["", "complete", "running", "waiting", "pruned", "infeasible", "failed"];

export class TrialsTable {
  constructor(key) {
    this.key = key;
    this.study = null;
    this.sort = "-number";
    this.state = "";
    this.stage = "";
    this.find = "";
    this.offset = 0;
    this.turn = 0;
    this.timer = 0;
    const state = h("select", { "aria-label": "State", onchange: () => this.choose({ state: state.value }) },
      STATES.map((each) => h("option", { value: each }, each || "all states")));
    const find = h("input", {
      type: "search", placeholder: "Filter: calibrate_mode=kl", "aria-label": "Filter trials",
      oninput: () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.choose({ find: find.value }), 250);
      },
    });
    this.count = h("span", { class: "small soft", role: "status" });
    this.before = h("button", { onclick: () => this.turnPage(-1) }, "Previous");
    this.after = h("button", { onclick: () => this.turnPage(1) }, "Next");
    this.head = h("thead", {});
    this.body = h("tbody", {});
    this.element = h("div", {},
      h("div", { class: "tools" }, state, find, h("div", { class: "pages" }, this.count, this.before, this.after)),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of trials" },
        h("table", { class: "dense" }, this.head, this.body)));
  }

  close() {
    clearTimeout(this.timer);
    this.turn += 1;
  }

  choose(values) {
    Object.assign(this, values, { offset: 0 });
    return this.refresh(this.study);
  }

  turnPage(by) {
    this.offset = Math.max(0, this.offset + by * PER_PAGE);
    return this.refresh(this.study);
  }

  ask() {
    return get(`/studies/${this.key}/trials?${query({
      offset: this.offset || undefined, limit: PER_PAGE, sort: this.sort, state: this.state, find: this.find,
    })}`);
  }

  async refresh(study, asked = this.ask()) {
    this.study = study;
    this.turn += 1;
    const mine = this.turn;
    const found = await asked;
    if (mine !== this.turn) return;
    const columns = this.columns();
    this.drawHead(columns);
    replace(this.body, found.rows.length ? found.rows.map((row) => this.row(row, columns))
      : h("tr", {}, h("td", { colspan: columns.length, class: "empty" },
        this.state || this.stage || this.find ? "no trial passes the filter" : "no trial yet")));
    const last = this.offset + found.rows.length;
    this.count.textContent = found.matched ? `${this.offset + 1}–${last} of ${found.matched.toLocaleString("en")}` : "";
    this.before.disabled = this.offset === 0;
    this.after.disabled = last >= found.matched;
  }

  columns() {
    const measures = this.study.measures.filter((each) => !["seconds", "cpu_s"].includes(each.name));
    return [
      { name: "number", words: "Trial", show: (row) => link(`/studies/${this.key}/trials/${row.number}`, `#${row.number}`) },
      { name: "state", words: "State", show: (row) => this.stateOf(row) },
      ...(this.study.stages.length > 1 ? [{ name: "stage", words: "Stage", show: (row) => row.stage }] : []),
      ...measures.map((each) => ({
        name: each.name, words: each.words, num: true,
        show: (row) => (row.score && each.name in row.score ? measure(row.score[each.name], each) : "–"),
      })),
      { name: "cpu_s", words: "CPU", num: true, show: (row) => (row.from_store ? "known" : duration(row.cpu_s)) },
      ...this.study.parameters.map((name) => ({
        name: `params.${name}`, words: name, show: (row) => (name in row.params ? plain(row.params[name]) : ""),
      })),
      { name: null, words: "Reason", show: (row) => row.error ?? "" },
    ];
  }

  stateOf(row) {
    if (this.study.best?.number === row.number) return chip("best");
    return row.state === "complete" ? h("span", { class: "soft" }, "complete") : chip(row.state);
  }

  drawHead(columns) {
    const focused = document.activeElement?.dataset?.sort;
    replace(this.head, h("tr", {}, columns.map((column) => {
      const chosen = this.sort.replace(/^-/, "") === column.name;
      const down = this.sort.startsWith("-");
      if (!column.name) return h("th", { scope: "col" }, column.words);
      return h("th", { scope: "col", class: column.num ? "num" : "", "aria-sort": chosen ? (down ? "descending" : "ascending") : null },
        h("button", {
          type: "button", "data-sort": column.name,
          onclick: () => this.choose({ sort: chosen && down ? column.name : `-${column.name}` }),
        }, column.words, chosen ? (down ? " ↓" : " ↑") : ""));
    })));
    if (focused) this.head.querySelector(`[data-sort="${CSS.escape(focused)}"]`)?.focus();
  }

  row(row, columns) {
    const path = `/studies/${this.key}/trials/${row.number}`;
    return h("tr", { class: "link-row", "data-trial": row.number, onclick: (event) => { if (!event.target.closest("a")) go(path); } },
      columns.map((column) => {
        const shown = column.show(row);
        return h("td", { class: column.num ? "num" : "", title: typeof shown === "string" && shown.length > 24 ? shown : null }, shown);
      }));
  }
}
