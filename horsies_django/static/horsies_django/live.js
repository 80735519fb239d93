/* Refreshes parts of a page without reloading it.
 *
 * A page includes this script as Media js and wraps each changing part: <div id="x" data-horsies-live>…</div>. Every
 * few seconds the script fetches the page's URL and replaces each such element's content by that of the same id.
 *
 *   <div data-horsies-live-controls data-seconds="5" data-pause="Pause" data-resume="Go on"
 *        data-stale="Not updated since {time}"></div>
 *
 * gets a button that pauses (remembered for the tab) and a message when the server can't be reached, both with the
 * page's translated texts. Controls are optional. An element that arrives without data-horsies-live is final; after the
 * last one the script stops fetching.
 *
 * The server answers with status 304 if the parts show what they showed at the last refresh: see admin/live.py. What is
 * counted here is no change: <time data-horsies-age="14.2" data-horsies-form="relative">14 s ago</time> has an age in
 * seconds at the time of the response, negative if its time is still to come, and data-durations has the texts. The
 * value of a <progress data-horsies-age="14.2" max="60"> is counted too. Ages stand still while updates are paused.
 *
 * A box with data-horsies-follow is at its end, and stays there while it grows, unless the user scrolls back.
 *
 * It waits while the tab is hidden, and skips an element while a checkbox in it is ticked, text in it is selected or one
 * of its forms has the focus. It preserves open <details> (with an id), scroll positions of boxes (with an id), and the
 * focused element (with an id, an href or a formaction). Screen readers are not notified, so a refreshed element must
 * not be an aria-live region. After each refresh the document gets the event "horsies:live".
 */
"use strict";
// The admin loads scripts in the head.
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", startRefreshing);
else startRefreshing();

function startRefreshing() {
  const controls = document.querySelector("[data-horsies-live-controls]");
  const texts = controls?.dataset ?? {};
  const PAUSED = "horsies-paused";
  const period = 1000 * (Number(texts.seconds) || 5);
  const state = { paused: sessionStorage.getItem(PAUSED) === "1", failures: 0, last: new Date(), timer: 0, request: null, tag: null };
  const message = document.createElement("span");
  const button = document.createElement("button");

  const countAge = ageCounter(JSON.parse(texts.durations ?? "{}"));

  const isInUse = (element) =>
    element.querySelector("input[type=checkbox]:checked, dialog[open]") ||
    element.contains(document.activeElement.closest("form")) ||
    (!getSelection().isCollapsed && getSelection().containsNode(element, true));

  const boxesToFollow = (element) => [...element.querySelectorAll("[data-horsies-follow]")];
  const showEnds = (boxes) => boxes.forEach((box) => (box.scrollTop = box.scrollHeight));

  function replace(element, fresh) {
    if (element.innerHTML === fresh.innerHTML) return;
    const open = new Map([...element.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
    const scrollPositions = [...element.querySelectorAll("[id]")].filter((each) => each.scrollLeft || each.scrollTop)
      .map((each) => [each.id, each.scrollLeft, each.scrollTop]);
    const isScrolledBack = (box) => box.scrollTop + box.clientHeight < box.scrollHeight - 8;
    const left = boxesToFollow(element).filter(isScrolledBack).map((box) => box.id);
    const active = element.contains(document.activeElement) ? document.activeElement : null;
    const focus = active && (active.id ? `#${CSS.escape(active.id)}` :
      active.matches("summary") && active.parentElement.id ? `#${CSS.escape(active.parentElement.id)} > summary` :
      ["href", "formaction"].filter((name) => active.hasAttribute(name))
        .map((name) => `[${name}="${CSS.escape(active.getAttribute(name))}"]`)[0]);
    element.replaceChildren(...document.importNode(fresh, true).childNodes);
    for (const each of element.querySelectorAll("details[id]")) if (open.has(each.id)) each.open = open.get(each.id);
    for (const [id, left, top] of scrollPositions) document.getElementById(id)?.scrollTo({ left, top, behavior: "instant" });
    showEnds(boxesToFollow(element).filter((box) => !left.includes(box.id)));
    if (focus) element.querySelector(focus)?.focus({ preventScroll: true });
  }

  // Returns whether every part was replaced: of one that was skipped, the next response has to have the content.
  function showPage(page) {
    let isAllShown = true;
    for (const element of document.querySelectorAll("[data-horsies-live][id]")) {
      const fresh = page.getElementById(element.id);
      if (!fresh) continue;
      if (isInUse(element)) {
        isAllShown = false;
        continue;
      }
      replace(element, fresh);
      element.toggleAttribute("data-horsies-live", fresh.hasAttribute("data-horsies-live"));
    }
    countAges();
    return isAllShown;
  }

  function countAges() {
    const isShown = !state.paused && !state.failures;
    for (const element of document.querySelectorAll("[data-horsies-live] [data-horsies-age]")) countAge(element, isShown);
  }

  async function refresh() {
    const request = (state.request = new AbortController());
    const timeout = setTimeout(() => request.abort(), 30000);
    try {
      // Admin pages are "no-store", so the browser has no copy of its own to ask about.
      const headers = state.tag ? { "If-None-Match": state.tag } : {};
      const response = await fetch(location.href, { credentials: "same-origin", cache: "no-store", headers, signal: request.signal });
      if (response.status !== 304) {
        if (!response.ok || response.redirected) throw new Error(`${response.status} ${response.url}`);
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        if (state.paused) return;
        state.tag = showPage(page) ? response.headers.get("ETag") : null;
      }
      Object.assign(state, { failures: 0, last: new Date() });
      if (response.status !== 304) document.dispatchEvent(new CustomEvent("horsies:live"));
    } catch {
      if (state.request === request && !state.paused && !document.hidden) state.failures += 1;
    } finally {
      clearTimeout(timeout);
      if (state.request === request) state.request = null;
    }
    const time = state.last.toLocaleTimeString(document.documentElement.lang || undefined);
    message.textContent = state.failures ? (texts.stale ?? "").replace("{time}", time) : "";
    scheduleRefresh(period * Math.min(2 ** state.failures, 24));
  }

  function scheduleRefresh(delay) {
    clearTimeout(state.timer);
    if (!document.querySelector("[data-horsies-live][id]")) {
      button.hidden = true;
      return;
    }
    if (!state.paused && !document.hidden && !state.request) state.timer = setTimeout(refresh, delay);
  }

  function updateButton() {
    button.textContent = (state.paused ? texts.resume : texts.pause) ?? "";
    document.documentElement.classList.toggle("horsies-is-paused", state.paused);
  }

  if (controls) {
    button.type = "button";
    button.className = "button";
    button.addEventListener("click", () => {
      state.paused = !state.paused;
      sessionStorage.setItem(PAUSED, state.paused ? "1" : "0");
      if (state.paused) state.request?.abort();
      updateButton();
      scheduleRefresh(0);
    });
    controls.append(button, " ", message);
    updateButton();
  }
  document.addEventListener("visibilitychange", () => scheduleRefresh(0));
  showEnds(boxesToFollow(document));
  countAges();
  setInterval(countAges, 1000);
  scheduleRefresh(period);
}

/* Returns a function that shows the age of an element. Differences of the browser's clock are enough for that. */
function ageCounter(texts) {
  const begins = new WeakMap(), known = new Map();
  // A response that took longer would make the age of the same moment jump back.
  const beginOf = (element) => {
    const begin = Date.now() - 1000 * Number(element.dataset.horsiesAge), before = known.get(element.dateTime);
    const isSame = element.dateTime && Math.abs(before - begin) < 5000; // else a clock was set
    if (known.size > 1000) known.clear();
    known.set(element.dateTime, isSame ? Math.min(before, begin) : begin);
    return known.get(element.dateTime);
  };
  const format = (number, digits) => new Intl.NumberFormat(document.documentElement.lang || undefined,
    { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(number);
  const fill = (text, ...values) => values.reduce((filled, value) => filled.replace(/%(\(\w+\))?[ds]/, value), text);
  const short = (seconds) => seconds < 1 ? fill(texts.ms, Math.round(seconds * 1000)) :
    seconds < 10 ? fill(texts.exact, format(Math.floor(seconds * 10) / 10, 1)) : fill(texts.s, Math.floor(seconds));
  const forms = {
    brief: (seconds) => seconds >= 172800 ? fill(texts.d, format(Math.round(seconds / 86400), 0)) :
      seconds >= 7200 ? fill(texts.h, Math.round(seconds / 3600)) :
      seconds >= 120 ? fill(texts.min, Math.round(seconds / 60)) : short(seconds),
    full: (seconds) => seconds < 60 ? short(seconds) :
      seconds < 3600 ? fill(texts.min_s, Math.floor(seconds / 60), Math.floor(seconds) % 60) :
      seconds < 86400 ? fill(texts.h_min, Math.floor(seconds / 3600), Math.floor(seconds % 3600 / 60)) :
      fill(texts.d_h, format(Math.floor(seconds / 86400), 0), Math.floor(seconds % 86400 / 3600)),
    relative: (age) => Math.abs(age) < 1 ? texts.now : fill(age > 0 ? texts.ago : texts.in, forms.brief(Math.abs(age))),
  };
  return (element, isShown) => {
    if (!begins.has(element)) begins.set(element, beginOf(element));
    if (!isShown) return;
    const age = (Date.now() - begins.get(element)) / 1000;
    if (element.matches("progress")) {
      element.value = age;
      return;
    }
    if (texts.now === undefined) return; // a page without controls has no texts
    const form = element.dataset.horsiesForm;
    const text = forms[form](form === "relative" ? age : Math.max(0, age));
    const isSelected = !getSelection().isCollapsed && getSelection().containsNode(element, true);
    if (element.textContent !== text && !isSelected) element.textContent = text;
  };
}
