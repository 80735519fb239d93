/* Scrolls a large graph to its running nodes instead of its often empty upper left corner, and zooms it.
 *
 * Without this script the style sheet and the two radio buttons switch between fitting the box and full size.
 * Refreshed elements are inside the box, so the box keeps its size.
 */
"use strict";
document.addEventListener("DOMContentLoaded", function () {
  document.querySelectorAll(".horsies-zoom").forEach(zoom);
  document.querySelectorAll(".horsies-canvas").forEach(scrollToActiveNode);
});

function scrollToActiveNode(canvas) {
  const [node] = ["failed", "running", "enqueued", "ready", "pending", "completed"]
    .map((state) => canvas.querySelector(`a.horsies-is-${state}`)).filter(Boolean);
  if (!node) return;
  const box = node.getBoundingClientRect(), frame = canvas.getBoundingClientRect();
  canvas.scrollTo({
    left: box.right > frame.right ? box.left - frame.left - 20 : 0,
    top: box.bottom > frame.bottom ? box.top - frame.top - (frame.height - box.height) / 2 : 0,
    behavior: "instant",
  });
}

function zoom(controls) {
  const SIZES = [0.25, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2];
  const canvas = controls.parentElement.querySelector(".horsies-canvas");
  const output = controls.querySelector("output");
  const buttons = [...controls.querySelectorAll("[data-horsies-zoom]")];
  const radios = [...controls.querySelectorAll("input")];

  const size = () => {
    const graph = canvas.querySelector("svg.horsies-drawn");
    return graph ? graph.getBoundingClientRect().width / graph.viewBox.baseVal.width : 1;
  };
  // The next visibly different size.
  const next = (step) => step > 0 ? SIZES.find((candidate) => candidate > size() + 0.02)
    : SIZES.findLast((candidate) => candidate < size() - 0.02);

  function updateControls() {
    output.textContent = `${Math.round(100 * size())} %`;
    for (const button of buttons) button.setAttribute("aria-disabled", String(!next(Number(button.dataset.horsiesZoom))));
  }

  for (const button of buttons) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const before = size(), after = next(Number(button.dataset.horsiesZoom));
      if (!after) return;
      const center = [canvas.scrollLeft + canvas.clientWidth / 2, canvas.scrollTop + canvas.clientHeight / 2];
      canvas.style.setProperty("--horsies-zoom", after);
      canvas.classList.add("horsies-zoomed");
      for (const radio of radios) radio.checked = false;
      const [left, top] = center.map((position) => position * after / before);
      canvas.scrollTo({ left: left - canvas.clientWidth / 2, top: top - canvas.clientHeight / 2, behavior: "instant" });
      updateControls();
    });
  }
  for (const radio of radios) radio.addEventListener("change", () => {
    canvas.classList.remove("horsies-zoomed");
    updateControls();
  });
  window.addEventListener("resize", updateControls);
  updateControls();
}
