/* Shows the part of a large graph where something goes on: else its upper left corner, which is often empty. */
"use strict";
document.addEventListener("DOMContentLoaded", function () {
  document.querySelectorAll(".horsies-canvas").forEach(function (canvas) {
    const [node] = ["failed", "running", "enqueued", "ready", "pending", "completed"]
      .map((state) => canvas.querySelector(`a.horsies-is-${state}`)).filter(Boolean);
    if (!node) return;
    const box = node.getBoundingClientRect(), frame = canvas.getBoundingClientRect();
    canvas.scrollTo({
      left: box.right > frame.right ? box.left - frame.left - 20 : 0,
      top: box.bottom > frame.bottom ? box.top - frame.top - (frame.height - box.height) / 2 : 0,
      behavior: "instant",
    });
  });
});
