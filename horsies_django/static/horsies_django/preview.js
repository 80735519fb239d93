/* Shows the next runs of a schedule while it is being edited.
 *
 * <div data-horsies-preview="/address/" data-fields="timing timezone …"></div> is inside the form with
 * these fields. Half a second after a field changes, their values are posted to the URL and the response is shown.
 * The element exists from the start and is an aria-live region, so that screen readers announce changes.
 * Without JavaScript it shows the saved schedule.
 */
"use strict";
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", preview);
else preview();

function preview() {
  const box = document.querySelector("[data-horsies-preview]");
  const form = box?.closest("form");
  if (!form) return;
  let timer = 0;
  let asking = null;

  function query() {
    const given = new FormData(form);
    const some = new URLSearchParams();
    for (const name of box.dataset.fields.split(" ")) if (given.has(name)) some.set(name, given.get(name));
    return some.toString();
  }
  let shown = query();

  async function show() {
    const asked = query();
    if (asked === shown) return;
    shown = asked;
    asking?.abort();
    asking = new AbortController();
    try {
      const options = { credentials: "same-origin", cache: "no-store", signal: asking.signal };
      const answer = await fetch(`${box.dataset.horsiesPreview}?${asked}`, options);
      if (!answer.ok || answer.redirected) throw new Error(`${answer.status} ${answer.url}`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      box.replaceChildren(...document.importNode(page.body, true).childNodes);
    } catch (error) {
      if (error.name === "AbortError") return;
      shown = "";
      box.textContent = box.dataset.failed ?? "";
    }
  }

  // Date pickers fire no event on the fields that they fill, so listen for the next focus.
  for (const event of ["input", "change", "focusin", "click"]) {
    form.addEventListener(event, () => {
      clearTimeout(timer);
      timer = setTimeout(show, 500);
    });
  }
}
