// Puts parts of the page in place as the server sends them, tells how long a thing lasts, and moves
// through the map by the arrow keys. The page reads well without it.
"use strict";
const live = document.getElementById("live"), old = document.getElementById("old");
// What the clock here is ahead of the server's, and after how long what is shown is called old.
const ahead = Date.now() - Date.parse(document.body.dataset.now), OLD_S = 180;
let lost = 0, alone = false;

function lasted(seconds) {
  for (const [size, unit, small, rest] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]])
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ${Math.floor(seconds % size / small)} ${rest}`;
  return `${Math.max(0, Math.floor(seconds))} s`;
}

function age() {
  for (const time of document.querySelectorAll("time[data-age]")) {
    time.title ||= time.textContent;
    time.textContent = `for ${lasted((Date.now() - ahead - Date.parse(time.dateTime)) / 1000)}`;
  }
}

// What is shown is old where the server has said nothing for minutes, or cannot be reached.
function warn() {
  const asof = document.getElementById("asof");
  const seconds = asof ? (Date.now() - ahead - Date.parse(asof.dateTime)) / 1000 : 0;
  const said = alone || seconds > OLD_S ? `This is old: it shows ${asof ? asof.textContent : "the past"}, ${Math.max(1, Math.floor(seconds / 60))} min ago.${alone ? " The page is not connected." : ""}` : "";
  if (old.textContent !== said) old.textContent = said;
  old.hidden = !said;
}

// One cell of the map is in the order of Tab: two thousand would bury all that comes after them.
function rove(to) {
  for (const cell of document.querySelectorAll("a.cell[tabindex='0']")) cell.tabIndex = -1;
  for (const cell of document.querySelectorAll("a.cell:not([tabindex])")) cell.tabIndex = -1;
  const cell = to || document.querySelector("details[open] a.cell");
  if (cell) cell.tabIndex = 0;
}

document.addEventListener("keydown", (event) => {
  const cell = document.activeElement;
  if (!cell?.matches("a.cell") || event.altKey || event.ctrlKey || event.metaKey) return;
  const cells = [...document.querySelectorAll("details[open] a.cell")], at = cells.indexOf(cell);
  const across = Math.max(1, Math.floor((cell.parentElement.clientWidth - 6) / (cell.offsetWidth + 2)));
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -at, End: cells.length - 1 - at };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const to = cells[Math.min(Math.max(at + steps[event.key], 0), cells.length - 1)];
  rove(to);
  to.focus();
});

const links = (part) => [part, ...part.querySelectorAll("a, summary, [tabindex]")];

function put(id, html) {
  const old = document.getElementById(id);
  if (!old) return html === "";
  if (html === "") { old.remove(); return true; }
  const focused = links(old).indexOf(document.activeElement), roving = old.tabIndex === 0 && old.matches("a.cell");
  old.outerHTML = html;
  const fresh = document.getElementById(id);
  if (old.matches("details")) fresh.open = old.open;
  for (const card of old.querySelectorAll("article[id]")) {
    const folds = [card, document.getElementById(card.id)].map((one) => one?.querySelector("details"));
    if (folds[0] && folds[1]) folds[1].open = folds[0].open;
  }
  if (fresh.matches("a.cell")) { fresh.tabIndex = roving ? 0 : -1; fresh.classList.add("fresh"); }
  if (focused >= 0) (links(fresh)[focused] || fresh).focus({ preventScroll: true });
  return true;
}

function take(event) {
  const begun = performance.now();
  const known = Object.entries(JSON.parse(event.data)).map(([id, html]) => put(id, html));
  // A group of nodes that was not there: rare, and the server knows its place.
  if (!known.every(Boolean)) return location.reload();
  if (!document.querySelector("a.cell[tabindex='0']")) rove();
  age();
  document.body.dataset.took = performance.now() - begun;
  live.textContent = `Changed ${new Date().toLocaleTimeString()}`;
}

function follow() {
  const { path, version } = document.body.dataset;
  const source = new EventSource(`/live?${new URLSearchParams({ path, since: version })}`);
  source.onopen = () => { clearTimeout(lost); lost = 0; alone = false; warn(); live.textContent = live.textContent.startsWith("Changed") ? live.textContent : "Live"; };
  source.onmessage = take;
  source.onerror = () => {
    // Each stream lasts some seconds, and the browser opens the next one.
    const closed = source.readyState === EventSource.CLOSED;
    if (closed) live.textContent = "Not connected: reload, or get a new link by `hpctl page --link`.";
    lost ||= setTimeout(() => {
      alone = true;
      if (!closed) live.textContent = "Not connected, trying again.";
      warn();
    }, closed ? 0 : 5000);
  };
}

rove();
age();
warn();
setInterval(() => { age(); warn(); }, 1000);
follow();
