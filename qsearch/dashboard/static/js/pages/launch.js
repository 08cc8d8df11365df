// A new search: a model, data if there are any, how long.

import { get, post, upload } from "../api.js";
import { card, h, problem, replace } from "../../web/dom.js";
import { bytes } from "../../web/format.js";
import { go } from "../router.js";

export async function launchPage(page) {
  const { allow_launch: allowed } = await get("/studies?limit=1");
  page.crumbs(["new search"]);
  if (!allowed) {
    page.show(h("h1", {}, "New search"), problem({ what: "Searches cannot be started from here.", fix: "Start the dashboard with --allow-launch." }));
    return;
  }
  const told = h("div", {});
  const about = h("div", {});
  const field = (id, type, extra = {}) => h("input", { id, type, ...extra });
  const model = field("model", "file", { accept: ".onnx" });
  const calib = field("calib", "file", { accept: ".npz" });
  const evaluation = field("eval", "file", { accept: ".npz" });
  const name = field("name", "text", { required: true, pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]{0,63}", title: "letters, digits and . _ -", value: `search-${Date.now().toString(36)}` });
  const trials = field("trials", "number", { min: 1, max: 100000, value: 32 });
  const drop = field("drop", "text", { required: true, pattern: "[0-9]{1,3}(\\.[0-9]{1,6})?%?", title: "a fraction or a share of the baseline: 0.01, 1%", value: "1%" });
  const workers = field("workers", "number", { min: 1, max: 256, value: 1 });
  const button = h("button", { class: "primary" }, "Start");

  model.addEventListener("change", () => replace(about));

  async function sent(input, kind) {
    if (!input.files.length) return null;
    replace(told, h("p", { class: "soft" }, `uploading ${input.files[0].name} (${bytes(input.files[0].size)})…`));
    const found = await upload(kind, input.files[0]);
    if (kind === "onnx") replace(about, h("p", { class: "small soft" }, `${found.about.nodes} nodes; inputs ${found.about.inputs.map((each) => `${each.name} (${each.shape.join(", ")})`).join("; ")}`));
    return found.upload;
  }

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      const wish = { model: (await sent(model, "onnx")) ?? "digits", name: name.value, trials: Number(trials.value),
        max_drop: drop.value, workers: Number(workers.value) };
      const calibration = await sent(calib, "npz");
      const labelled = await sent(evaluation, "npz");
      if (calibration) wish.calib = calibration;
      if (labelled) wish.eval = labelled;
      await post("/studies", wish);
      replace(told, h("p", { class: "soft" }, "started; waiting for its study…"));
      await appear(wish.name);
    } catch (error) {
      replace(told, problem(error));
    } finally {
      button.disabled = false;
    }
  }

  async function appear(wanted) {
    for (let tries = 0; tries < 60 && page.current(); tries += 1) {
      const { studies } = await get("/studies");
      const found = studies.find((study) => study.name === wanted);
      if (found) {
        go(`/studies/${found.key}`);
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
    throw { what: "The study did not appear.", where: `runs/${wanted}/launch.log`, fix: "Its log says why." };
  }

  const rows = [["model", "Model (.onnx; none: digits)", model], ["calib", "Calibration data (.npz)", calib], ["eval", "Evaluation data (.npz)", evaluation],
    ["name", "Name", name], ["trials", "Trials", trials], ["drop", "Accuracy that may be lost", drop], ["workers", "Workers", workers]];
  page.show(h("div", { class: "head" }, h("h1", {}, "New search")), h("p", { class: "under" }, "Runs on the machine of this dashboard, and goes on when it ends."),
    card("Model and data", {}, h("form", { onsubmit: submit }, h("div", { class: "form" }, rows.map(([id, words, input]) => [h("label", { for: id }, words), input])),
      h("p", { class: "tools" }), button), about, told));
}
