/* Shows when a schedule will be due while somebody edits it.
 *
 * <div data-horsies-preview="/address/" data-fields="timing timezone …"></div> stands somewhere in the form that has
 * these fields. Half a second after one of them was changed its content is what the address answers to their values.
 * The element is there from the beginning and is an aria-live region, so that a screen reader says what is new in it.
 * Without JavaScript it tells what was saved last.
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

  // The pickers of dates fire no event of the fields that they fill: what has the focus next does.
  for (const event of ["input", "change", "focusin", "click"]) {
    form.addEventListener(event, () => {
      clearTimeout(timer);
      timer = setTimeout(show, 500);
    });
  }
}
