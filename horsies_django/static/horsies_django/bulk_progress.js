/* Continues a bulk action by submitting the form until it is complete or the page is left. */
"use strict";
document.querySelectorAll("form[data-horsies-continue]").forEach(function (form) {
  const timer = setTimeout(function () { form.submit(); }, 300);
  window.addEventListener("pagehide", function () { clearTimeout(timer); });
});
