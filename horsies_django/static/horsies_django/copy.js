/* Copies a text to the clipboard at a click on a button of copy_button.html.
 *
 *   <button type="button" class="horsies-copy" data-horsies-copy="text" data-copied="Copied" data-failed="Not copied">
 *   <button type="button" class="horsies-copy" data-horsies-copy-from="id of the element whose text is copied" …>
 *
 * It shows a tick for two seconds, and screen readers announce the outcome. One listener serves the whole page, so the
 * buttons of a refreshed part work too.
 */
"use strict";
{
  const SHOWN = 2000; // milliseconds
  const timers = new WeakMap();
  const note = document.createElement("div");
  note.setAttribute("role", "status");
  note.className = "horsies-copied-note";
  document.documentElement.classList.add("horsies-copies");

  // Sites without HTTPS have no navigator.clipboard.
  function copySelected(text) {
    const area = document.createElement("textarea");
    const focused = document.activeElement;
    area.value = text;
    area.readOnly = true;
    area.className = "horsies-copied-text";
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    focused?.focus({ preventScroll: true });
    return isCopied;
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return copySelected(text);
    }
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-horsies-copy], [data-horsies-copy-from]");
    if (!button) return;
    const { horsiesCopy, horsiesCopyFrom, copied, failed } = button.dataset;
    const text = horsiesCopyFrom ? document.getElementById(horsiesCopyFrom)?.textContent : horsiesCopy;
    const isCopied = text !== undefined && (await copy(text));
    button.dataset.outcome = isCopied ? "copied" : "failed";
    note.textContent = "";
    // Screen readers announce a change, so the same text has to go and come back.
    requestAnimationFrame(() => (note.textContent = isCopied ? copied : failed));
    clearTimeout(timers.get(button));
    timers.set(button, setTimeout(() => delete button.dataset.outcome, SHOWN));
  });

  const addNote = () => document.body.append(note);
  if (document.body) addNote();
  else document.addEventListener("DOMContentLoaded", addNote);
}
