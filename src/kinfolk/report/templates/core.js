"use strict";
// What all parts of the page share: the data, numbers as text, colours of the theme, and the figures made elsewhere.
const TYPES = {f4: Float32Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array};
const NONE = 65535; // a rounded number that is not there
const at = id => document.getElementById(id);
const data = JSON.parse(at("data").textContent);
const figures = JSON.parse(at("figures").textContent);
const count = data.names.length;
const touched = matchMedia("(pointer: coarse)").matches; // dragging scrolls the page there
const config = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]};

function unpack(packed) {
  const text = atob(packed.data), bytes = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
  return new TYPES[packed.type](bytes.buffer);
}
for (const name of ["x", "y", "head", "tail", "weight", "flow"]) data[name] = unpack(data[name]);
for (const name in data.nodes) data.nodes[name] = unpack(data.nodes[name]);
data.path.groups = unpack(data.path.groups);
for (const each of data.path.numbers) each.values = unpack(each);

/** The number of a node's model at a λ: a coefficient, or a prediction at a public point. */
function pathNumber(which, lam, node) {
  const each = data.path.numbers[which], value = each.values[lam * count + node];
  return value === NONE ? NaN : each.low + each.step * value;
}
const groupAt = (lam, node) => data.path.groups[lam * count + node];

function format(value, digits = 3) {
  if (value === null || Number.isNaN(value)) return "–";
  if (value < 0) return "−" + format(-value, digits);
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(digits - 1);
  if (Math.abs(value) >= 10 ** digits) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}
const counted = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
function make(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text; // never as markup: names come from data
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  return made;
}

// Colours of the theme -----------------------------------------------------------------------------------------------
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let printing = false;
const isDark = () => !printing && (document.documentElement.dataset.theme
  ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

function channels(colour) { return [1, 3, 5].map(k => parseInt(colour.slice(k, k + 2), 16)); }
function between(stops, share) {
  const place = Math.max(0, Math.min(1, share)) * (stops.length - 1), k = Math.min(Math.floor(place), stops.length - 2);
  const a = channels(stops[k]), b = channels(stops[k + 1]);
  return "rgb(" + a.map((from, c) => Math.round(from + (place - k) * (b[c] - from))).join(",") + ")";
}
/** From low to high: light to dark on light ground, dark to light on dark ground. */
const sequence = () => isDark() ? ["#2c3f63", "#3a6f8f", "#3fa58f", "#a5d46a", "#fdf5a6"]
  : ["#e3edc0", "#8fcfa0", "#3f9fa0", "#27608f", "#26255f"];
/** From below to above zero. */
const around = () => isDark() ? ["#ff9d4d", "#b3763f", "#454a52", "#4685b3", "#7cc4ff"]
  : ["#b34700", "#ec9f5e", "#e9e8e4", "#6fabd6", "#00568c"];

// Figures that were made with the page -------------------------------------------------------------------------------
function themed(layout) {
  const ink = css("--ink"), soft = css("--soft"), line = css("--line");
  const out = {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
    font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: soft},
    modebar: {bgcolor: "rgba(0,0,0,0)", color: css("--edge"), activecolor: ink},
    hoverlabel: {bgcolor: css("--paper"), bordercolor: line, font: {color: ink}}};
  for (const name in layout) if (/^[xy]axis\d*$/.test(name))
    out[name] = {automargin: true, ...layout[name], gridcolor: line, zerolinecolor: css("--edge"), linecolor: line};
  return out;
}
function drawFigure(name) {
  const place = at("figure-" + name);
  if (!place) return;
  const {data: given, layout} = figures[name];
  const traces = JSON.parse(JSON.stringify(given).replaceAll(data.colours[0], css("--accent"))); // brighter on dark ground
  if (!hasGraphicsCard) for (const trace of traces) if (trace.type === "scattergl") trace.type = "scatter";
  const narrow = place.clientWidth < 520, shown = themed(layout);
  shown.margin = {...layout.margin, l: narrow ? 44 : 60, r: narrow ? 4 : 16};
  shown.dragmode = touched ? false : "zoom";
  return Plotly.react(place, traces, shown, {...config, displayModeBar: narrow ? false : "hover"});
}
const hasGraphicsCard = (() => {
  try { return Boolean(document.createElement("canvas").getContext("webgl")); } catch { return false; }
})();

// Light, dark, paper -------------------------------------------------------------------------------------------------
function redraw() {
  for (const name in figures) drawFigure(name);
  drawNetwork();
  drawMarks();
}
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("kinfolk-theme", theme); } catch { /* private windows remember nothing */ }
  redraw();
}
function onPaper(now) {
  if (printing === now) return;
  printing = now;
  redraw();
  for (const place of document.querySelectorAll(".js-plotly-plot"))
    Plotly.relayout(place, now ? {autosize: false, width: 660} : {autosize: true, width: null});
  if (!now) dispatchEvent(new Event("resize"));
}
function start() {
  try {
    const kept = localStorage.getItem("kinfolk-theme");
    if (kept) document.documentElement.dataset.theme = kept;
  } catch { /* as above */ }
  at("theme").onclick = () => setTheme(isDark() ? "light" : "dark");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
  for (const button of document.querySelectorAll(".copy")) button.onclick = () => copy(button);
  startNetwork();
  startAlong();
  startNodes();
  startBlend();
  redraw();
  document.documentElement.dataset.ready = "yes";
}
function copy(button) {
  const text = button.parentNode.querySelector("code");
  const copied = navigator.clipboard ? navigator.clipboard.writeText(text.textContent) : Promise.reject();
  copied.then(() => { button.textContent = "Copied"; }, () => getSelection().selectAllChildren(text));
}
