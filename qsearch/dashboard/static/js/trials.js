// The table of trials; sorting, filtering and paging happen in the server, and stand in the address.

import { get, query } from "./api.js";
import { chip, h, link, replace, toast } from "../web/dom.js";
import { duration, measure, number, plain } from "../web/format.js";
import { trialChip } from "../web/head.js";
import { asked, go, keep } from "./router.js";

const PER_PAGE = 50;
const LEAST = 2;
const MOST = 5;
const EXAMPLE = "sqnr_db>35 calibrate_mode=mse top1>=98.5%";

export class TrialsTable {
  constructor(key) {
    Object.assign(this, { key, study: null, turn: 0, timer: 0 });
    this.sort = asked("sort", "-number");
    this.filter = asked("filter");
    this.offset = Math.max(0, (Number(asked("page", "1")) - 1) * PER_PAGE) || 0;
    this.picked = new Set(asked("pick").split(",").filter((word) => /^\d+$/.test(word)).map(Number).slice(0, MOST));
    this.find = h("input", {
      type: "search", placeholder: EXAMPLE, "aria-label": "Filter trials", class: "filter", value: this.filter, list: "filter-words",
      oninput: () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.choose({ filter: this.find.value }, false), 300);
      },
      onkeydown: (event) => {
        if (event.key !== "Enter") return;
        clearTimeout(this.timer);
        this.choose({ filter: this.find.value });
      },
    });
    this.words = h("datalist", { id: "filter-words" });
    this.states = h("span", { class: "chips" });
    this.told = h("div", { role: "alert" });
    this.count = h("span", { class: "small soft", role: "status" });
    this.before = h("button", { class: "tiny", onclick: () => this.turnPage(-1) }, "Previous");
    this.after = h("button", { class: "tiny", onclick: () => this.turnPage(1) }, "Next");
    this.compare = h("button", { class: "primary", onclick: () => go(this.comparePath()) }, "Compare");
    this.shown = [];
    this.unpick = h("button", { class: "tiny", onclick: () => { this.picked.clear(); this.pickedChanged(); this.refresh(this.study); } }, "Clear");
    this.chooser = h("details", { class: "menu" }, h("summary", {}, "Columns"), h("div", {}));
    this.exports = h("span", { class: "pair" });
    this.head = h("thead", {});
    this.body = h("tbody", {});
    this.element = h("div", {},
      h("div", { class: "tools" }, this.find, this.words, this.states, this.compare, this.unpick, this.chooser, this.exports, h("div", { class: "pages" }, this.count, this.before, this.after)),
      this.told,
      h("div", { class: "scroll worktable", tabindex: "0", role: "group", "aria-label": "Table of trials" },
        h("table", { class: "dense sticky" }, this.head, this.body)));
    this.pickedChanged(false);
  }

  close() {
    clearTimeout(this.timer);
    this.turn += 1;
  }

  choose(values, step = true) {
    // What was typed a moment ago counts as well.
    clearTimeout(this.timer);
    Object.assign(this, { filter: this.find.value }, values, { offset: 0 });
    if (this.find.value !== this.filter) this.find.value = this.filter;
    this.keep(step);
    return this.refresh(this.study);
  }

  keep(step = true) {
    keep({ filter: this.filter, sort: this.sort === "-number" ? "" : this.sort, page: this.offset ? this.offset / PER_PAGE + 1 : "" }, step);
  }

  turnPage(by) {
    this.offset = Math.max(0, this.offset + by * PER_PAGE);
    this.keep();
    return this.refresh(this.study);
  }

  // A term of one column in the filter, in place of earlier ones; null takes them away.
  constrain(name, terms) {
    const column = /[\s=<>!~,"]/.test(name) ? `"${name}"` : name;
    const kept = this.filter.match(/(?:"[^"]*"|[^\s"])+/g)?.filter((word) => !word.startsWith(column) || !/^[=<>!~]/.test(word.slice(column.length))) ?? [];
    return this.choose({ filter: [...kept, ...(terms ?? []).map((term) => `${column}${term}`)].join(" ") });
  }

  ask() {
    return get(`/studies/${this.key}/trials?${query({ offset: this.offset || undefined, limit: PER_PAGE, sort: this.sort, filter: this.filter })}`).catch((error) => {
      if (error.status === 404 || error.status === 401 || error.status === undefined || error.status >= 500) throw error;
      return { error };
    });
  }

  async refresh(study, answer = this.ask()) {
    this.study = study;
    this.turn += 1;
    const mine = this.turn;
    const found = await answer;
    if (mine !== this.turn) return;
    replace(this.told, found.error ? h("div", { class: "notice" }, h("p", {}, found.error.what), h("p", { class: "small" }, found.error.fix ?? "")) : null);
    if (found.error) return;
    const all = this.columns();
    const chosen = this.chosenColumns(all);
    const columns = all.filter((column) => chosen.has(column.name));
    this.shown = found.rows.map((row) => row.number);
    this.pickedChanged(false);
    this.drawTools(all, chosen);
    this.drawHead(columns);
    const fresh = found.rows.map((row) => this.row(row, columns));
    replace(this.body, fresh.length ? fresh : h("tr", {}, h("td", { colspan: columns.length + 1, class: "empty" }, this.filter ? "no trial passes the filter" : "no trial yet")));
    const last = this.offset + found.rows.length;
    this.count.textContent = found.matched ? `${this.offset + 1}–${last} of ${found.matched.toLocaleString("en")}` : "";
    this.before.disabled = this.offset === 0;
    this.after.disabled = last >= found.matched;
  }

  columns() {
    const path = (row) => `/studies/${this.key}/trials/${row.number}`;
    return [
      { name: "number", words: "Trial", show: (row) => link(path(row), `#${row.number}`) },
      { name: "state", words: "State", show: (row) => this.stateOf(row) },
      { name: "stage", words: "Stage", show: (row) => row.stage },
      ...this.study.measures.filter((each) => !["seconds", "cpu_s"].includes(each.name)).map((each) => ({
        name: each.name, words: each.words, num: true,
        show: (row) => (row.score && each.name in row.score ? measure(row.score[each.name], each) : "–"),
      })),
      { name: "cpu_s", words: "CPU", num: true, show: (row) => (row.from_store ? "known" : duration(row.cpu_s)) },
      { name: "seconds", words: "wall time", num: true, show: (row) => duration(row.seconds) },
      { name: "samples", words: "samples", num: true, show: (row) => plain(row.samples) },
      { name: "attempts", words: "attempts", num: true, show: (row) => plain(row.attempts) },
      ...this.study.parameters.map((name) => ({
        name: `params.${name}`, words: name, show: (row) => (name in row.params ? plain(row.params[name]) : ""),
      })),
      { name: "tags", words: "Tags", show: (row) => row.tags.map((tag) => chip("tag", tag)) },
      { name: "note", words: "Note", show: (row) => row.note },
      { name: "error", words: "Reason", show: (row) => row.error ?? "" },
    ];
  }

  // As the address says, or as this browser remembers; else all that differ.
  chosenColumns(all) {
    let given = asked("cols");
    try {
      given ||= localStorage.getItem(`columns ${this.key}`) ?? "";
    } catch {
      // A browser may refuse to remember.
    }
    const names = new Set(given.split(",").map(decodeURIComponent));
    if (given) return new Set(["number", ...all.map((column) => column.name).filter((name) => names.has(name))]);
    const constant = new Set(this.study.constant);
    return new Set(all.map((column) => column.name).filter((name) => ["number", "state"].includes(name) || name === this.study.measure.name
      || (!constant.has(name) && !["seconds", "samples", "attempts"].includes(name))));
  }

  chooseColumn(all, name, on) {
    const chosen = this.chosenColumns(all);
    if (on) chosen.add(name);
    else chosen.delete(name);
    const words = all.map((column) => column.name).filter((each) => chosen.has(each)).map(encodeURIComponent).join(",");
    this.remember(words);
  }

  remember(words) {
    try {
      if (words) localStorage.setItem(`columns ${this.key}`, words);
      else localStorage.removeItem(`columns ${this.key}`);
    } catch {
      // The address still holds them.
    }
    keep({ cols: words });
    this.refresh(this.study);
  }

  drawTools(all, chosen) {
    const list = this.chooser.lastChild;
    if (!list.contains(document.activeElement)) {
      replace(list, h("button", { class: "tiny", onclick: () => this.remember("") }, "Those that differ"),
        all.filter((column) => column.name !== "number").map((column) => h("label", { class: "check" }, h("input", { type: "checkbox", "data-column": column.name, checked: chosen.has(column.name),
          onchange: (event) => this.chooseColumn(all, column.name, event.target.checked) }), column.words, this.study.constant.includes(column.name) ? h("span", { class: "soft" }, " (constant)") : null)));
    }
    const words = query({ filter: this.filter, sort: this.sort });
    replace(this.exports, ["csv", "json"].map((kind) => link(`/api/v1/studies/${this.key}/trials/export.${kind}?${words}`, kind.toUpperCase(), { class: "button", download: true, title: "What passes the filter, in this order" })));
    replace(this.words, all.map((column) => h("option", { value: column.name.replace(/^params\./, "") })));
    const states = Object.entries(this.study.counts);
    const quick = [...(states.length > 1 ? states.map(([state, count]) => [`state=${state}`, `${this.study.silent && state === "running" ? "interrupted" : state} ${number(count)}`]) : []), ...(this.study.front.length ? [["front=true", `front ${this.study.front.length}`]] : [])];
    replace(this.states, quick.map(([term, label]) => h("button", { class: "tiny", "aria-pressed": String(this.filter.split(" ").includes(term)), "data-quick": term,
      onclick: () => {
        const kept = this.filter.split(" ").filter((word) => word && word !== term && !(term.startsWith("state=") && word.startsWith("state=")));
        this.choose({ filter: (this.filter.split(" ").includes(term) ? kept : [...kept, term]).join(" ") });
      } }, label)));
  }

  stateOf(row) {
    const marks = [this.study.best?.number === row.number ? chip("best") : null, row.front ? chip("front") : null].filter(Boolean);
    if (marks.length) return marks;
    return row.state === "complete" ? h("span", { class: "soft" }, "complete") : trialChip(row.state, this.study);
  }

  // What the trials are sorted by now, and where a column stands in it.
  sorted(name) {
    const order = this.sort.split(",");
    const place = order.findIndex((word) => word.replace(/^-/, "") === name);
    return { order, place, down: order[place]?.startsWith("-") };
  }

  // The order that a click on a heading asks for: of what is chosen now, which may not be drawn yet.
  sortedBy(name, further) {
    const { order, place, down } = this.sorted(name);
    const flipped = down ? name : `-${name}`;
    if (!further) return flipped;
    return (place < 0 ? [...order, flipped] : order.with(place, flipped)).join(",");
  }

  drawHead(columns) {
    const focused = document.activeElement?.dataset?.sort;
    replace(this.head, h("tr", {}, columns.map((column, index) => {
      const { order, place, down } = this.sorted(column.name);
      return h("th", { scope: "col", class: `${column.num ? "num" : ""}${index ? "" : " first"}`, "aria-sort": place < 0 ? null : down ? "descending" : "ascending" },
        h("button", {
          type: "button", "data-sort": column.name, title: "Sort; with Shift: sort by it as well",
          onclick: (event) => this.choose({ sort: this.sortedBy(column.name, event.shiftKey) }),
        }, column.words, place < 0 ? "" : ` ${down ? "↓" : "↑"}${order.length > 1 ? place + 1 : ""}`));
    })));
    if (focused) this.head.querySelector(`[data-sort="${CSS.escape(focused)}"]`)?.focus();
  }

  row(row, columns) {
    const path = `/studies/${this.key}/trials/${row.number}`;
    return h("tr", { class: "link-row", "data-trial": row.number, onclick: (event) => { if (!event.target.closest("a,input,label")) go(path); } },
      columns.map((column, index) => {
        const value = column.show(row);
        const cell = { class: column.num ? "num" : "", title: typeof value === "string" && value.length > 24 ? value : null };
        if (index) return h("td", cell, value);
        return h("th", { scope: "row", class: "first" }, h("label", { class: "pick" }, h("input", { type: "checkbox", "aria-label": `Pick trial ${row.number}`, checked: this.picked.has(row.number),
          onchange: (event) => this.pick(row.number, event.target) })), value);
      }));
  }

  pick(number, box) {
    if (box.checked && this.picked.size >= MOST) {
      box.checked = false;
      toast(`at most ${MOST} trials can be compared`);
      return;
    }
    if (box.checked) this.picked.add(number);
    else this.picked.delete(number);
    this.pickedChanged();
  }

  pickedChanged(step = true) {
    const count = this.picked.size;
    this.compare.textContent = `Compare ${count || `first ${LEAST}`}`;
    this.compare.disabled = this.compared().length < LEAST;
    this.compare.title = `The ticked trials, ${LEAST} to ${MOST}; where none is ticked, the first ${LEAST} of the table`;
    this.unpick.hidden = !count;
    if (step) keep({ pick: [...this.picked].join(",") }, false);
  }

  // What is ticked; the first of the table where nothing is.
  compared() {
    return this.picked.size ? [...this.picked] : this.shown.slice(0, LEAST);
  }

  comparePath() {
    return `/compare?${this.compared().map((number) => `trial=${this.key}:${number}`).join("&")}`;
  }
}
