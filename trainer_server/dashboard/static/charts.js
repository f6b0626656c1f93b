// Learning curves and throughput, drawn by uPlot. The tables beside them have the same values.
import uPlot from "./vendor/uPlot.esm.js";

const drawn = new Map();

function colours() {
  const style = getComputedStyle(document.documentElement);
  const named = name => style.getPropertyValue(name).trim();
  return { line: named("--line"), other: named("--other"), bad: named("--bad"), band: named("--band"), text: named("--soft"), grid: named("--edge") };
}

function axes(c, names) {
  const base = { stroke: c.text, grid: { stroke: c.grid, width: 1 }, ticks: { stroke: c.grid } };
  return names.map(extra => ({ ...base, ...extra }));
}

function put(box, options, data) {
  drawn.get(box)?.destroy();
  const size = { width: Math.max(200, box.clientWidth), height: parseFloat(getComputedStyle(box).minHeight) };
  drawn.set(box, new uPlot({ ...size, ...options }, data, box));
}

function curve(box, all) {
  const wanted = box.dataset.chosen ? [box.dataset.chosen] : box.dataset.metric.split(",");
  const name = wanted.find(candidate => all[candidate]?.x.length);
  if (!name) { box.textContent = "nothing to draw yet"; return; }
  if (box.textContent === "nothing to draw yet") box.textContent = "";
  const c = colours(), shown = all[name];
  const series = [{ label: "version" }, { label: name, stroke: c.line, width: 2, points: { show: shown.x.length < 40, size: 6 } }];
  const data = [shown.x, shown.y];
  const bands = [];
  if (shown.low) {
    const edge = { stroke: c.band, points: { show: false } };
    series.push({ label: "95 % from", ...edge }, { label: "to", ...edge });
    data.push(shown.low, shown.high);
    bands.push({ series: [3, 2], fill: c.band });
  }
  const small = box.classList.contains("small");
  put(box, {
    series, bands, legend: { show: !small }, cursor: { drag: { x: false, y: false } },
    title: small ? `${name} by version` : undefined,
    scales: { x: { time: false, range: () => [shown.x[0], Math.max(shown.x.at(-1), shown.x[0] + 1)] } },
    axes: axes(c, [{ size: small ? 30 : 40, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }, { size: 60 }]),
  }, data);
  box.setAttribute("aria-label", `${name} by version: ${shown.y.length} values, the last one ${Number(shown.y.at(-1)).toPrecision(3)}`);
}

async function curves(box) {
  const answer = await fetch(box.dataset.curves);
  if (!answer.ok) { box.textContent = `The server answered ${answer.status}`; return; }
  const all = await answer.json();
  curve(box, all);
  const select = document.querySelector(`select[data-for="${box.id}"]`);
  if (select) {
    const listed = new Set([...select.options].map(option => option.value));
    for (const name of Object.keys(all)) if (!listed.has(name)) select.add(new Option(name));
  }
  if (select && !select.dataset.bound) {
    select.dataset.bound = "yes";
    select.addEventListener("change", () => { box.dataset.chosen = select.value; curves(box); });
  }
}

async function throughput(box) {
  const answer = await fetch(box.dataset.throughput);
  if (!answer.ok) { box.textContent = `The server answered ${answer.status}`; return; }
  const { x, completions, tokens, failed } = await answer.json();
  const c = colours();
  put(box, {
    series: [{}, { label: "completions a minute", stroke: c.line, width: 2, scale: "n", points: { show: false } }, { label: "sampled tokens a second", stroke: c.other, width: 2, scale: "t", points: { show: false } }, { label: "not whole, a minute", stroke: c.bad, width: 1, scale: "n", points: { show: false } }],
    scales: { n: { range: (_u, _low, high) => [0, Math.max(1, high)] }, t: { range: (_u, _low, high) => [0, Math.max(1, high)] } },
    axes: axes(c, [{ values: (_u, times) => times.map(time => new Date(1000 * time).toLocaleTimeString(undefined, { timeStyle: "short" })) }, { scale: "n", size: 50 }, { scale: "t", side: 1, size: 60, grid: { show: false } }]),
  }, [x, completions, tokens, failed]);
  box.setAttribute("aria-label", `The last hour: ${completions.reduce((a, b) => a + b, 0)} completions, ${failed.reduce((a, b) => a + b, 0)} not whole`);
}

// A canvas is transparent, and a picture is looked at elsewhere: it gets the page's background.
function savePicture(button) {
  const box = document.getElementById(button.dataset.picture), canvas = box.querySelector("canvas");
  if (!canvas) return;
  const picture = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
  const context = picture.getContext("2d");
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, picture.width, picture.height);
  context.drawImage(canvas, 0, 0);
  picture.toBlob(blob => {
    const metric = document.querySelector(`select[data-for="${box.id}"]`).value;
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${button.dataset.name} ${metric}.png` });
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
document.addEventListener("click", event => {
  const button = event.target.closest("[data-picture]");
  if (button) savePicture(button);
});

export function drawCharts() {
  for (const box of document.querySelectorAll("[data-curves]")) curves(box);
  for (const box of document.querySelectorAll("[data-throughput]")) throughput(box);
}

let waiting = 0;
function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(drawCharts, 300);
}
addEventListener("theme", drawCharts);
addEventListener("resize", soon);
addEventListener("live", event => { if (event.detail === "versions" || event.detail === "runs") { clearTimeout(waiting); waiting = setTimeout(drawCharts, 2000); } });
