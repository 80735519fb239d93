/* Connects the checkboxes of a list that live.js has replaced with the script of Django's actions. */
"use strict";
document.addEventListener("horsies:live", () => {
  const boxes = document.querySelectorAll("tr input.action-select");
  if (boxes.length) window.Actions?.(boxes);
});
