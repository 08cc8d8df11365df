// A note and tags on a trial, or on a study where ``trial`` is null.

import { post } from "./api.js";
import { card, failed, h, toast } from "../web/dom.js";

export function notesCard(key, trial, known, changed) {
  const note = h("textarea", { id: "note", rows: 2, maxlength: 4000 });
  note.value = known.note;
  const tags = h("input", { id: "tags", value: known.tags.join(" "), placeholder: "candidate shipped" });
  async function keepNote(event) {
    event.preventDefault();
    try {
      await post(`/studies/${key}/notes`, { trial, note: note.value, tags: tags.value.split(/\s+/).filter(Boolean) });
      toast("kept");
      changed();
    } catch (error) {
      failed(error);
    }
  }
  return card("Note", { id: "notes" }, h("form", { onsubmit: keepNote, class: "form" }, h("label", { for: "note" }, "Note"), note, h("label", { for: "tags" }, "Tags"), tags, h("span", {}, known.note_by ? `by ${known.note_by}` : ""), h("button", {}, "Keep")));
}
