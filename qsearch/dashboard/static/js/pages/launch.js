// A new search: a model, data if there are any, what is wanted, within which limits, how long.

import { get, post, upload } from "../api.js";
import { card, h, problem, replace } from "../../web/dom.js";
import { bytes } from "../../web/format.js";
import { go } from "../router.js";

const PRESETS = {
  accuracy: ["Keep the accuracy (32 trials)", { trials: 32, drop: "1%", minimize: [] }],
  small: ["Smallest module within 1 % (64 trials)", { trials: 64, drop: "1%", minimize: ["size"] }],
  fast: ["Fastest within 1 % (64 trials)", { trials: 64, drop: "1%", minimize: ["latency"] }],
  look: ["A quick look (8 trials)", { trials: 8, drop: "5%", minimize: [] }],
};
const METRICS = [["", "top-1 with labels, else SQNR"], ["top1", "top-1"], ["agreement", "agreement with the float model"], ["sqnr", "SQNR"]];
const KINDS = { onnx: "onnx", npz: "npz", npy: "npy", zip: "zip" };

export async function launchPage(page) {
  const [{ allow_launch: allowed }, me] = await Promise.all([get("/studies?limit=1"), get("/me")]);
  page.crumbs(["new search"]);
  if (!allowed) {
    page.show(h("h1", {}, "New search"), problem(me.queue === null
      ? { what: "Searches cannot be started from here.", fix: "Start the dashboard with --allow-launch, or qsearch serve." }
      : { what: "Your token may read, and start nothing.", fix: "Ask the server's operator for one: qsearch token NAME --may submit." }));
    return;
  }
  const told = h("div", {});
  const about = h("div", {});
  const field = (id, type, extra = {}) => h("input", { id, type, ...extra });
  const choice = (id, options) => h("select", { id }, options.map(([key, words]) => h("option", { value: key }, words)));
  const model = field("model", "file", { accept: ".onnx" });
  const calib = field("calib", "file", { accept: ".npz,.npy,.zip" });
  const evaluation = field("eval", "file", { accept: ".npz,.npy,.zip" });
  const CUTS = [["until", "Quantize until (nodes, ;)"], ["from", "Quantize from (nodes, ;)"], ["set_input", "Constant inputs (sr=16000;)"]];
  const cuts = CUTS.map(([key]) => field(key, "text", { placeholder: "chosen" }));
  const name = field("name", "text", { pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]{0,63}", title: "letters, digits and . _ -", placeholder: "that of the model" });
  const preset = choice("preset", Object.entries(PRESETS).map(([key, [words]]) => [key, words]));
  const metric = choice("metric", METRICS);
  const costs = Object.entries(me.queue.costs).map(([key, words]) => [h("input", { type: "checkbox", id: `least-${key}`, value: key }), words]);
  const trials = field("trials", "number", { min: 1, max: 100000, value: 32, required: true });
  const drop = field("drop", "text", { required: true, pattern: "[0-9]{1,3}(\\.[0-9]{1,6})?%?", title: "a fraction or a share of the baseline: 0.01, 1%", value: "1%" });
  const atMost = (id) => field(id, "text", { pattern: "[0-9]+(\\.[0-9]+)?[kKmMgG]?", title: "bytes: 300k, 2M", placeholder: "any" });
  const [size, ram, flash] = ["size", "ram", "flash"].map(atMost);
  const shipped = choice("for", me.queue.forms.map((each) => [each, each]));
  const latency = field("latency", "number", { min: 0, step: "any", placeholder: "any" });
  const pool = choice("pool", me.queue.pools.map((each) => [each, each]));
  const workers = field("workers", "number", { min: 1, max: me.queue.workers, value: me.queue.workers });
  const button = h("button", { class: "primary" }, "Queue the search");

  model.addEventListener("change", () => replace(about));
  preset.addEventListener("change", () => {
    const [, wanted] = PRESETS[preset.value];
    trials.value = wanted.trials;
    drop.value = wanted.drop;
    for (const [box] of costs) box.checked = wanted.minimize.includes(box.value);
  });

  async function sent(input, kinds) {
    if (!input.files.length) return null;
    const [file] = input.files;
    const kind = KINDS[file.name.split(".").pop().toLowerCase()];
    if (!kinds.includes(kind)) throw { what: `${file.name} cannot be used.`, fix: `Give ${kinds.map((each) => `.${each}`).join(", ")}; pack a folder of images as a .zip.` };
    if (file.size > me.queue.max_upload_bytes) throw { what: `${file.name} has ${bytes(file.size)}; ${bytes(me.queue.max_upload_bytes)} are the most.` };
    replace(told, h("p", { class: "soft" }, `uploading ${file.name} (${bytes(file.size)})…`));
    const found = await upload(kind, file);
    if (kind === "onnx") replace(about, h("p", { class: "small soft" }, `${found.about.nodes} nodes; inputs ${found.about.inputs.map((each) => `${each.name} (${each.shape.join(", ")})`).join("; ")}`));
    return `${found.upload}.${kind}`;
  }

  function wanted() {
    const found = { for: shipped.value, trials: Number(trials.value), max_drop: drop.value, pool: pool.value };
    const least = costs.filter(([box]) => box.checked).map(([box]) => box.value);
    if (workers.value) found.workers = Number(workers.value);
    if (name.value) found.name = name.value;
    for (const box of cuts) {
      const words = box.value.split(";").map((word) => word.trim()).filter(Boolean);
      if (words.length) found[box.id] = words;
    }
    if (metric.value) found.metric = metric.value;
    if (least.length) found.minimize = least;
    if (size.value) found.max_size = size.value;
    const limits = [latency, ram, flash].filter((input) => input.value);
    if (limits.length) found.at_most = Object.fromEntries(limits.map((input) => [input.id, input.type === "number" ? Number(input.value) : input.value]));
    return found;
  }

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      const asked = { model: (await sent(model, ["onnx"])) ?? "digits", stem: stemOf(model), ...wanted() };
      for (const [key, input] of [["calib", calib], ["eval", evaluation]]) {
        const found = await sent(input, ["npz", "npy", "zip"]);
        if (found) asked[key] = found;
      }
      const chosen = Object.entries({ model, calib, eval: evaluation }).filter(([, input]) => input.files.length);
      asked.files = Object.fromEntries(chosen.map(([key, input]) => [key, input.files[0].name]));
      await post("/studies", asked);
      go("/queue");
    } catch (error) {
      replace(told, problem(error));
    } finally {
      button.disabled = false;
    }
  }

  const form = (rows) => h("div", { class: "form" }, rows.map(([id, words, input]) => [h("label", { for: id }, words), input]));
  page.show(h("div", { class: "head" }, h("h1", {}, "New search")),
    h("p", { class: "under" }, `Queued on this server (${me.queue.max_studies} at a time), and goes on when this page is closed.${limitOf(me)}`),
    h("form", { onsubmit: submit, class: "grid" },
      card("Model and data", { wide: true }, form([["model", "Model (.onnx; none: digits)", model], ["calib", "Calibration data (.npz, .npy, .zip of images)", calib],
        ["eval", "Evaluation data (the same)", evaluation], ...CUTS.map(([key, words], place) => [key, words, cuts[place]])]), about),
      card("Objective and limits", { wide: true }, form([["preset", "Preset", preset], ["metric", "Maximise", metric],
        ["least-size", "Minimise as well", h("span", { class: "chips" }, costs.map(([box, words]) => h("label", { class: "chips" }, box, words)))],
        ["for", "For a file, or for the C of a core", shipped], ["drop", "Accuracy that may be lost", drop], ["size", "Most bytes of constants", size], ["latency", "Most CPU time of a sample (ms)", latency],
        ["ram", "Most RAM of its C", ram], ["flash", "Most flash of its core", flash]])),
      card("Search", { wide: true }, form([["name", "Name", name], ["trials", "Trials", trials], ["pool", "Workers run on", pool], ["workers", "Workers", workers]]), h("p", { class: "tools" }), button, told)));
}

function stemOf(input) {
  const words = input.files.length ? input.files[0].name.replace(/\.onnx$/i, "").replace(/[^A-Za-z0-9_.-]/g, "_").replace(/^[^A-Za-z0-9]+/, "").slice(0, 55) : "digits";
  return words || "model";
}

function limitOf(me) {
  return me.max_studies ? ` ${me.max_studies} of your studies may wait or run at a time.` : "";
}
