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
  let request = null;

  function formQuery() {
    const formData = new FormData(form);
    const query = new URLSearchParams();
    for (const name of box.dataset.fields.split(" ")) if (formData.has(name)) query.set(name, formData.get(name));
    return query.toString();
  }
  let shown = formQuery();

  async function show() {
    const requested = formQuery();
    if (requested === shown) return;
    shown = requested;
    request?.abort();
    request = new AbortController();
    try {
      const options = { credentials: "same-origin", cache: "no-store", signal: request.signal };
      const response = await fetch(`${box.dataset.horsiesPreview}?${requested}`, options);
      if (!response.ok || response.redirected) throw new Error(`${response.status} ${response.url}`);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
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
