// Who runs, who waits in which order, who ended; owners cancel what is theirs.

import { get, post } from "../api.js";
import { ask, card, chip, failed, h, link, meter, replace, scroller } from "../../web/dom.js";
import { ago, duration, number } from "../../web/format.js";

const EVERY_MS = 2000;
const COLUMNS = [["Place", "num"], ["Study"], ["Owner"], ["State"], ["Trials", "num"], ["Ran", "num extra"], [""]];
const CHIPS = { queued: "waiting", running: "running", done: "complete", failed: "failed", cancelled: "stopped" };

export async function queuePage(page) {
  const me = await get("/me");
  const body = h("tbody", {});
  const count = h("span", { class: "soft small", role: "status" });
  const empty = h("div", { class: "empty", hidden: true }, h("p", {}, "Nothing was queued yet."));
  let shown = "";

  async function cancel(job) {
    const words = job.state === "running" ? `Cancel ${job.name}? The best so far is written first.` : `Take ${job.name} from the queue?`;
    if (!(await ask(words, "Cancel the search"))) return;
    try {
      await post(`/jobs/${job.name}/cancel`, {});
      await refresh();
    } catch (error) {
      failed(error);
    }
  }

  function row(job) {
    const open = job.mine && (job.state === "queued" || job.state === "running");
    const state = job.cancelled && job.state === "running" ? "cancelling" : job.state;
    return h("tr", { "data-job": job.name }, h("td", { class: "num" }, job.position ?? ""),
      h("td", {}, job.study ? link(`/studies/${job.study}`, job.name) : job.name, job.error ? ["what", "where", "fix"].map((each) => job.error[each] ? h("div", { class: "small soft" }, job.error[each]) : null) : null),
      h("td", {}, job.owner), h("td", {}, chip(CHIPS[job.state], state), job.attempts ? h("div", { class: "small soft" }, `driver died ${job.attempts} ×`) : null),
      h("td", { class: "num" }, job.finished === null ? number(job.trials) : [`${number(job.finished)} / ${number(job.trials)}`, meter(job.finished, job.trials)]),
      h("td", { class: "num extra" }, job.seconds ? duration(job.seconds) : "–"),
      h("td", {}, h("div", { class: "acts" }, open && !job.cancelled ? h("button", { type: "button", class: "tiny danger", "aria-label": `Cancel ${job.name}`, onclick: () => cancel(job) }, "Cancel")
        : job.finished_at ? h("span", { class: "small soft" }, ago(job.finished_at)) : null)));
  }

  async function refresh() {
    const jobs = await get("/jobs");
    // A row that is replaced under the pointer loses the click.
    const now = JSON.stringify(jobs);
    if (now === shown) return;
    shown = now;
    replace(body, jobs.map(row));
    empty.hidden = jobs.length > 0;
    const waiting = jobs.filter((job) => job.state === "queued").length;
    count.textContent = `${jobs.filter((job) => job.state === "running").length} of ${me.queue.max_studies} run, ${waiting} wait${waiting === 1 ? "s" : ""}`;
  }

  page.crumbs(["queue"]);
  await refresh();
  const head = h("tr", {}, COLUMNS.map(([words, kind]) => (words ? h("th", { scope: "col", class: kind ?? "" }, words) : h("td", {}))));
  page.show(h("div", { class: "head" }, h("h1", {}, "Queue"), count, h("div", { class: "acts" }, me.may === "submit" ? link("/launch", "New search", { class: "button primary" }) : null)),
    h("p", { class: "under" }, `You are ${me.name}. Owners take turns; of one owner older studies go first.`),
    card("Studies", {}, scroller("Queue", h("table", {}, h("thead", {}, head), body)), empty));
  page.poll(refresh, EVERY_MS);
}
