// Times in the reader's zone, live updates, keys.
import { drawCharts } from "./charts.js";

const said = document.getElementById("said");
const live = document.getElementById("live");

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
    const moment = new Date(time.dateTime);
    time.title = time.textContent + " UTC";
    time.textContent = moment.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
  }
}

// A copy button takes its text, or the page's address; a browser copies on https and on this machine only.
document.addEventListener("click", async event => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = button.dataset.copy || location.href;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    said.textContent = text;
  }
});

document.addEventListener("change", event => {
  const box = event.target.closest(".tokenbox");
  if (box && event.target.type === "radio") box.dataset.mode = event.target.value;
});

document.addEventListener("htmx:afterSwap", event => { localTimes(event.detail.target.parentElement || document); });
document.addEventListener("htmx:responseError", event => {
  said.textContent = event.detail.xhr.status === 401 ? "You are logged out: load the page again." : `The server answered ${event.detail.xhr.status}.`;
});

// Parts of a page ask for themselves again when an event of their kind comes.
function listen() {
  const source = new EventSource("/ui/events");
  source.onopen = () => { live.textContent = "live"; live.dataset.state = "on"; };
  source.onerror = () => { live.textContent = "not connected"; live.dataset.state = "off"; };
  source.onmessage = event => {
    for (const name of JSON.parse(event.data)) {
      document.body.dispatchEvent(new CustomEvent(`live-${name}`));
      dispatchEvent(new CustomEvent("live", { detail: name }));
    }
  };
  addEventListener("pagehide", () => source.close());
}

// A call shows its messages and tokens when it is opened, also when that was before htmx was there.
function opened(details) {
  if (details.open && details.hasAttribute("hx-get")) htmx.trigger(details, "opened");
}
document.addEventListener("toggle", event => opened(event.target), true);
addEventListener("load", () => document.querySelectorAll("details[open][hx-get]").forEach(opened));

// On a phone the list of runs begins above the fold: filters that are not set are folded.
if (matchMedia("(max-width: 40rem)").matches) {
  for (const more of document.querySelectorAll("details.optional:not([data-set])")) more.open = false;
}

// `/` goes to the search, `j` and `k` to the next and the previous row of a list, `g r` and `g o` to runs and overview.
let before = "";
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const pressed = before + event.key;
  before = event.key === "g" ? "g" : "";
  if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) { search.focus(); event.preventDefault(); } else location.assign("/ui/runs");
  } else if (pressed === "gr") location.assign("/ui/runs");
  else if (pressed === "go") location.assign("/");
  else if (event.key === "j" || event.key === "k") {
    const links = [...document.querySelectorAll(".runs tbody a.id, .tree summary")].filter(link => link.checkVisibility());
    const at = links.indexOf(document.activeElement);
    links[Math.min(links.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))]?.focus();
  }
});

localTimes(document);
drawCharts();
if (live) listen();
// A permalink to a completion opens it and all that it is in.
const target = location.hash ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
for (let at = target?.querySelector("details"); at; at = at.parentElement?.closest("details")) at.open = true;
target?.scrollIntoView();
