/* Scrolls a large graph to its failed or running nodes instead of its upper left corner. */
"use strict";
document.addEventListener("DOMContentLoaded", function () {
  const canvas = document.querySelector(".horsies-canvas");
  const node = ["failed", "running", "enqueued", "ready", "pending", "completed"]
    .map((state) => canvas?.querySelector(`a.horsies-is-${state}`)).find(Boolean);
  if (!node) return;
  const box = node.getBoundingClientRect(), frame = canvas.getBoundingClientRect();
  canvas.scrollTo({
    left: box.right > frame.right ? box.left - frame.left - 20 : 0,
    top: box.bottom > frame.bottom ? box.top - frame.top - (frame.height - box.height) / 2 : 0,
    behavior: "instant",
  });
});
