// Chooses the page for an address, and asks for the token where the server wants one.

import { post } from "./api.js";
import { h, link, problem, replace } from "../web/dom.js";
import { comparePage } from "./pages/compare.js";
import { launchPage } from "./pages/launch.js";
import { modulePage } from "./pages/module.js";
import { queuePage } from "./pages/queue.js";
import { studiesPage } from "./pages/studies.js";
import { studyPage } from "./pages/study.js";
import { trialPage } from "./pages/trial.js";
import { start } from "./router.js";
import { themeSwitch } from "./theme.js";

const PAGES = [
  [/^\/$/, studiesPage],
  [/^\/launch$/, launchPage],
  [/^\/queue$/, queuePage],
  [/^\/compare$/, comparePage],
  [/^\/studies\/([^/]+)$/, studyPage],
  [/^\/studies\/([^/]+)\/trials\/(\d+)$/, trialPage],
  [/^\/studies\/([^/]+)\/module$/, modulePage],
];

const RETRY_MS = 2000;

const main = document.getElementById("main");
let leave = () => {};
let turn = 0;

async function render(moved = false) {
  leave();
  leave = () => {};
  turn += 1;
  const mine = turn;
  showLink("");
  const closers = [];
  leave = () => closers.splice(0).forEach((close) => close());
  const page = {
    onleave: (close) => (mine === turn ? closers.push(close) : close()),
    show: (...children) => { if (mine === turn) replace(main, ...children); },
    crumbs: (...steps) => { if (mine === turn) showCrumbs(steps); },
    link: (state) => { if (mine === turn) showLink(state); },
    current: () => mine === turn,
    // Refresh what is shown until the reader leaves, and say whether the server answers.
    poll: (refresh, everyMs) => {
      const timer = setInterval(async () => {
        try {
          await refresh();
          page.link("live");
        } catch {
          page.link("lost");
        }
      }, everyMs);
      page.link("live");
      page.onleave(() => clearInterval(timer));
    },
  };
  const [pattern, draw] = PAGES.find(([p]) => p.test(location.pathname)) ?? [null, null];
  try {
    if (!draw) throw { what: "There is no such page.", fix: "Go back to the list of studies." };
    await draw(page, ...location.pathname.match(pattern).slice(1).map(decodeURIComponent));
  } catch (error) {
    if (!page.current()) return;
    if (error.status === 401) askToken(error);
    else {
      showCrumbs([]);
      replace(main, h("div", { class: "head" }, h("h1", {}, "Not shown")), problem(error), h("p", { class: "after" }, link("/", "All studies")));
      // No answer, or a database that is away: both come back by themselves.
      const passes = error instanceof TypeError || error.status === 503;
      if (passes) setTimeout(() => page.current() && render(), RETRY_MS);
    }
  }
  if (moved && page.current()) main.focus({ preventScroll: true });
}

function showCrumbs(steps) {
  const shown = steps.map(([words, path]) => (path ? link(path, words) : h("span", { "aria-current": "page" }, words)));
  replace(document.getElementById("crumbs"), shown);
  document.title = [...steps.map(([words]) => words).reverse(), "qsearch"].join(" · ");
}

function showLink(state) {
  const element = document.getElementById("link");
  element.className = `link ${state}`;
  const words = { live: "live", lost: "reconnecting…" }[state] ?? "";
  if (element.textContent !== words) element.textContent = words;
}

function askToken(error) {
  showCrumbs([["sign in"]]);
  const input = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const told = h("div", {});
  const form = h("form", {
    class: "card",
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        await post("/session", { token: input.value });
        render();
      } catch (refused) {
        replace(told, problem(refused));
      }
    },
  }, h("h1", {}, "This dashboard needs a token"),
  h("p", { class: "under" }, "It was given to the server as --token or QSEARCH_TOKEN, or to you by qsearch token."),
  h("p", { class: "head" }, h("label", { for: "token" }, "Token"), input, h("button", { class: "primary" }, "Open")), told);
  replace(main, form);
  if (error.what !== "a token is needed") replace(told, problem(error));
  input.focus();
}

async function boot() {
  // A fragment is never sent: the token goes from here into a cookie that no script can read.
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await post("/session", { token: given });
    } catch {
      // The page will ask for the token.
    }
  }
  themeSwitch();
  start(render);
}

boot();
