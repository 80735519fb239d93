/* Shows what a task writes and reports, from the endpoint tasks/<id>/events/. The browser reconnects by itself. */
"use strict";
const report = document.getElementById("report");
if (report) {
  const parts = ["pre", "progress", "[role=status]", "span"];
  const [lines, bar, state, place] = parts.map((part) => report.querySelector(part));
  const events = new EventSource(report.dataset.events);
  let shown = 1;
  events.addEventListener("output", (event) => {
    const { attempt, data } = JSON.parse(event.data);
    if (attempt !== shown) lines.textContent = ""; // a new attempt writes everything again
    shown = attempt;
    const isAtEnd = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 8;
    lines.append(data);
    if (isAtEnd) lines.scrollTop = lines.scrollHeight;
  });
  events.addEventListener("progress", (event) => {
    const { done, total, message } = JSON.parse(event.data);
    Object.assign(bar, { max: total, value: done });
    if (state.textContent !== "Running") state.textContent = "Running"; // screen readers read each change
    place.textContent = `${done} of ${total}: ${message}`;
  });
  events.addEventListener("end", (event) => {
    events.close();
    state.textContent = { COMPLETED: "Completed" }[JSON.parse(event.data).status] ?? "Not completed";
  });
  events.addEventListener("error", () => {
    if (events.readyState === EventSource.CLOSED) state.textContent = "It can't be read any more.";
  });
}
