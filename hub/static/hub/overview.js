/* Keeps the overview's fragment fresh and says how fresh it is. Without it the page is whole. */
"use strict";
(() => {
  const box = document.getElementById("hub-live");
  const line = document.getElementById("hub-fresh");
  if (!box || !line || !window.htmx) return;
  const says = document.getElementById("hub-fresh-says");
  const button = document.getElementById("hub-fresh-pause");
  const PATIENCE = 3; // failures in a row after which the page says that it is old
  let updated = Date.now();
  let failures = 0;
  let paused = false;
  let unfolded = [];

  const clock = () =>
    new Date(updated).toLocaleTimeString(document.documentElement.lang, { hour12: false });
  const say = (text) => {
    if (says.textContent !== text) says.textContent = text;
  };
  const tell = () => {
    const lost = failures >= PATIENCE;
    line.classList.toggle("hub-lost", lost);
    // Seconds that count are not read out; that it is paused, or lost, is.
    says.setAttribute("aria-live", lost || paused ? "polite" : "off");
    if (paused) say(line.dataset.paused.replace("{time}", clock()));
    else if (lost) say(line.dataset.lost.replace("{time}", clock()));
    else say(line.dataset.updated.replace("{seconds}", Math.round((Date.now() - updated) / 1000)));
  };
  const failed = () => {
    failures += 1;
    tell();
  };

  box.addEventListener("htmx:beforeRequest", (event) => {
    // What somebody has the focus in, or has marked, is not taken from under their hands.
    const held = box.contains(document.activeElement) || !document.getSelection().isCollapsed;
    if (document.hidden || paused || held) event.preventDefault();
  });
  box.addEventListener("htmx:beforeSwap", (event) => {
    // A session that has ended leads to the login, which is not the fragment.
    const path = new URL(event.detail.xhr.responseURL, location.href).pathname;
    if (event.detail.xhr.status !== 200 || path !== box.getAttribute("hx-get")) {
      event.detail.shouldSwap = false;
      if (event.detail.xhr.status === 200) failed();
      return;
    }
    unfolded = [...box.querySelectorAll("details[open]")].map((one) => one.id);
  });
  box.addEventListener("htmx:afterSwap", () => {
    unfolded.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
    updated = Date.now();
    failures = 0;
    tell();
  });
  for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"])
    box.addEventListener(name, failed);

  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    tell();
  });
  setInterval(tell, 1000);
  document.body.classList.add("hub-lives");
  line.hidden = false;
  tell();
})();
