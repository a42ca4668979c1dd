// The network: nodes and edges, what colours mean, the node under the pointer, and the way along λ.
const view = {lam: data.path.chosen, colour: "group", strokes: "weight", node: null};
const FEW = 25; // nodes whose names fit in
const BINS = 5; // widths of lines; one trace has one
const MEANING = {
  weight: "Wide lines: a large weight, neighbours that are to be much alike.",
  flow: "Wide lines: the two ends pull hard at each other, and would differ more if they were not neighbours. This is at the chosen λ.",
  none: "",
};
const FIELDS = {
  group: {title: "group of kin"},
  error_tailored: {title: "error of the tailored model", scale: "sequence"},
  gain: {title: "gain over the better baseline", scale: "around", unit: " %"},
  gain_alone: {title: "gain over alone", scale: "around", unit: " %"},
  train_rows: {title: "rows to learn from", scale: "sequence"},
};
data.path.names.forEach((name, k) => {
  const title = data.path.coefficients ? (name === "intercept" ? "intercept" : "coefficient of " + name) : "prediction at public " + name;
  FIELDS["number " + k] = {title, number: k, scale: "around"};
});
const neighbours = Array.from({length: count}, () => []);
data.head.forEach((head, edge) => { neighbours[head].push([data.tail[edge], edge]); neighbours[data.tail[edge]].push([head, edge]); });
const sameWeight = data.weight.every(weight => weight === data.weight[0]);
const many = hasGraphicsCard && (count > 1500 || data.head.length > 4000);
const kind = many ? "scattergl" : "scatter";
const nodeSize = () => Math.max(4.5, Math.min(22, 32 / count ** 0.25)) * (at("map").clientWidth < 520 ? 0.8 : 1);

function valueOf(field, node) {
  const {number} = FIELDS[field];
  return number === undefined ? data.nodes[field][node] : pathNumber(number, view.lam, node);
}
function quantile(sorted, share) { return sorted[Math.round(share * (sorted.length - 1))]; }

/** From where to where colours go; for coefficients the same along λ, so that one sees them smoothen. */
const rangeOf = (() => {
  const known = {};
  return field => known[field] ??= (() => {
    const {number, scale} = FIELDS[field], every = number === undefined ? Array.from(data.nodes[field])
      : Array.from({length: count}, (_, node) => pathNumber(number, data.path.chosen, node));
    const sorted = every.filter(Number.isFinite).sort((a, b) => a - b);
    if (!sorted.length) return [0, 1];
    if (scale === "sequence") return [quantile(sorted, 0.02), quantile(sorted, 0.98)];
    let most = quantile(sorted.map(Math.abs).sort((a, b) => a - b), 0.95) || 1;
    if (FIELDS[field].unit) most = Math.min(most, 100);
    return [-most, most];
  })();
})();

function nodeColours() {
  const field = FIELDS[view.colour];
  if (view.colour === "group") return Array.from({length: count}, (_, node) => data.colours[groupAt(view.lam, node) % data.colours.length]);
  const [low, high] = rangeOf(view.colour), stops = field.scale === "around" ? around() : sequence(), none = css("--none");
  return Array.from({length: count}, (_, node) => {
    const value = valueOf(view.colour, node);
    return Number.isFinite(value) ? between(stops, (value - low) / (high - low || 1)) : none;
  });
}
const symbolOf = group => data.symbols[Math.floor(group / data.colours.length) % data.symbols.length];
function nodeSymbols() {
  return view.colour === "group" ? Array.from({length: count}, (_, node) => symbolOf(groupAt(view.lam, node))) : "circle";
}
function nodeTrace() {
  const few = count <= FEW;
  const plain = name => name.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // no markup from names
  return {type: kind, mode: few ? "markers+text" : "markers", x: data.x, y: data.y, hoverinfo: "none", showlegend: false, cliponaxis: false,
    text: few ? data.names.map(plain) : undefined, textposition: "top center", textfont: {color: css("--ink"), size: 12, shadow: `0 0 3px ${css("--paper")}, 0 0 3px ${css("--paper")}`},
    marker: {color: nodeColours(), symbol: nodeSymbols(), size: nodeSize(), opacity: 1, line: {width: many ? 0.4 : 1, color: css("--rim")}}};
}
/** One trace for each width of line: edges whose weight or flow is a like share of the largest. */
function edgeTraces() {
  const fine = Math.max(0.35, Math.min(1, 10 / Math.sqrt(data.weight.length))); // the more lines, the finer
  const traces = Array.from({length: BINS}, (_, bin) => ({type: kind, mode: "lines", x: [], y: [], hoverinfo: "skip", showlegend: false,
    line: {color: css(view.strokes === "flow" ? "--flow" : "--edge"), width: Math.max(0.5, (1 + bin) * fine)}, opacity: 0.3 + 0.12 * bin}));
  if (view.strokes === "none") return traces;
  let low = Infinity, high = 0;
  for (const value of data[view.strokes]) { low = Math.min(low, value); high = Math.max(high, value); }
  data[view.strokes].forEach((value, edge) => {
    const bin = high - low <= 1e-6 * high ? 1 : Math.min(BINS - 1, Math.floor(BINS * value / high));
    traces[bin].x.push(data.x[data.head[edge]], data.x[data.tail[edge]], null);
    traces[bin].y.push(data.y[data.head[edge]], data.y[data.tail[edge]], null);
  });
  return traces;
}
/** As high as the network is, at this width. */
function fitHeight() {
  const extent = values => { let low = Infinity, high = -Infinity; for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); } return high - low; };
  const map = at("map"), share = extent(data.y) / (extent(data.x) || 1);
  map.style.height = Math.round(Math.max(300, Math.min(640, map.clientWidth * share + 40))) + "px";
}
function drawNetwork() {
  fitHeight();
  const hidden = {visible: false, fixedrange: false};
  const layout = {...themed({xaxis: hidden, yaxis: {...hidden, scaleanchor: "x"}}), margin: {l: 12, r: 12, t: 12, b: 12}, uirevision: "same",
    hovermode: "closest", hoverdistance: 24, dragmode: matchMedia("(pointer: coarse)").matches ? false : "pan"};
  Plotly.react(at("map"), [...edgeTraces(), nodeTrace()], layout, {...config, displayModeBar: true, modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d"]]});
  drawLegend();
  drawCard();
  markLam();
}
/** Only what changes along λ. */
function recolour() {
  Plotly.restyle(at("map"), {"marker.color": [nodeColours()], "marker.symbol": [nodeSymbols()]}, [BINS]);
  drawLegend();
  drawCard();
  markLam();
}

// Legend -------------------------------------------------------------------------------------------------------------
const SHAPES = {circle: "M6 1a5 5 0 1 0 .01 0z", diamond: "M6 0 12 6 6 12 0 6z", square: "M1 1h10v10H1z", "triangle-up": "M6 1 12 11H0z",
  star: "M6 0 7.5 4.3 12 4.5 8.5 7.3 9.7 12 6 9.2 2.3 12 3.5 7.3 0 4.5 4.5 4.3z", cross: "M4 0h4v4h4v4H8v4H4V8H0V4h4z"};
function swatch(group) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS(svg.namespaceURI, "path");
  svg.setAttribute("width", 12); svg.setAttribute("height", 12); svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", SHAPES[symbolOf(group)]); path.setAttribute("fill", data.colours[group % data.colours.length]);
  svg.append(path);
  return svg;
}
function drawMarks() { for (const mark of document.querySelectorAll(".mark")) mark.replaceChildren(swatch(Number(mark.dataset.group))); }
function groupSizes(lam) {
  const sizes = new Map();
  for (let node = 0; node < count; node++) sizes.set(groupAt(lam, node), (sizes.get(groupAt(lam, node)) || 0) + 1);
  return [...sizes].sort((a, b) => a[0] - b[0]);
}
function drawLegend() {
  const legend = at("legend"), field = FIELDS[view.colour];
  legend.replaceChildren();
  at("stroke-words").textContent = view.strokes === "weight" && sameWeight ? "All edges have the same weight." : MEANING[view.strokes];
  if (view.colour === "group") {
    const sizes = groupSizes(view.lam);
    for (const [group, size] of sizes.slice(0, 16)) {
      const item = make("span");
      item.append(swatch(group), `group ${group}: ${size.toLocaleString("en")} ${size === 1 ? "node" : "nodes"}`);
      legend.append(item);
    }
    if (sizes.length > 16) legend.append(make("span", `and ${sizes.length - 16} more groups`));
    return;
  }
  const [low, high] = rangeOf(view.colour), stops = field.scale === "around" ? around() : sequence(), unit = field.unit || "";
  const scale = make("span", undefined, {class: "scale"});
  scale.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
  legend.append(make("span", format(low, 2) + unit), scale, make("span", format(high, 2) + unit), make("span", field.title));
  const lost = Array.from({length: count}, (_, node) => valueOf(view.colour, node)).filter(value => !Number.isFinite(value)).length;
  if (lost) legend.append(make("span", `grey: ${lost.toLocaleString("en")} ${lost === 1 ? "node" : "nodes"} without ${field.number === undefined ? "test rows" : "a model"}`));
}

// The node under the pointer -----------------------------------------------------------------------------------------
function drawCard() {
  const card = at("card"), node = view.node;
  card.replaceChildren();
  drawOver();
  if (node === null) {
    card.removeAttribute("data-node");
    card.append(make("p", "Point at a node, or press it, to see its rows, its errors and its neighbours.", {class: "small hint"}));
    return;
  }
  card.dataset.node = data.names[node];
  card.append(make("h3", data.names[node]), groupLine(node));
  const list = make("dl"), errors = ["alone", "pooled", "tailored", "final"].map(name => data.nodes["error_" + name][node]);
  const add = (name, value, mark) => { const row = make("div"); row.append(make("dt", name), make("dd", value, mark ? {class: "best"} : {})); list.append(row); };
  if (FIELDS[view.colour].number !== undefined) add(FIELDS[view.colour].title, format(valueOf(view.colour, node)), true);
  add("rows to learn from", format(data.nodes.train_rows[node], 9));
  add("test rows", format(data.nodes.test_rows[node], 9));
  if (data.nodes.test_rows[node]) {
    ["error alone", "error, one model for all", "error, tailored", "error, what it ends with"].forEach((name, k) => add(name, format(errors[k]), errors[k] === Math.min(...errors)));
    add("gain over the better baseline", Number.isFinite(data.nodes.gain[node]) ? format(data.nodes.gain[node], 2) + " %" : "–");
  }
  add("ends with", {alone: "alone", pooled: "one model for all", tailored: "tailored"}[data.kinds[data.model[node]]]);
  card.append(list, neighbourLine(node));
}
function groupLine(node) {
  const line = make("div", undefined, {class: "small"});
  line.append(swatch(groupAt(view.lam, node)), ` group ${groupAt(view.lam, node)}`);
  return line;
}
function neighbourLine(node) {
  const near = neighbours[node].slice().sort((a, b) => data.flow[b[1]] - data.flow[a[1]]), shown = near.slice(0, 8).map(([other]) => data.names[other]);
  const rest = near.length > 8 ? ` and ${near.length - 8} more` : "";
  return make("p", near.length ? `${near.length} ${near.length === 1 ? "neighbour" : "neighbours"}: ${shown.join(", ")}${rest}` : "no neighbours", {class: "small"});
}
/** Lines to the neighbours and a ring, drawn over the map: quick, since the map itself is not drawn again. */
function drawOver() {
  const over = at("over"), shown = at("map")._fullLayout, node = view.node;
  over.replaceChildren();
  if (node === null || !shown || !shown.xaxis) return;
  const spot = k => [shown.xaxis._offset + shown.xaxis.l2p(data.x[k]), shown.yaxis._offset + shown.yaxis.l2p(data.y[k])];
  const add = (tag, attributes) => { const made = document.createElementNS(over.namespaceURI, tag); for (const name in attributes) made.setAttribute(name, attributes[name]); over.append(made); return made; };
  const [x, y] = spot(node), size = nodeSize(), strongest = Math.max(...neighbours[node].map(([, edge]) => data[view.strokes === "flow" ? "flow" : "weight"][edge]));
  for (const [other, edge] of neighbours[node]) {
    const [x2, y2] = spot(other), width = 1 + 2.5 * data[view.strokes === "flow" ? "flow" : "weight"][edge] / (strongest || 1);
    add("line", {x1: x, y1: y, x2, y2, "stroke-width": width.toFixed(2)});
  }
  add("circle", {cx: x, cy: y, r: size / 2 + 4});
  const right = x < shown.width * 0.6;
  if (count > FEW) add("text", {x: right ? x + size / 2 + 10 : x - size / 2 - 10, y: y + 4, "text-anchor": right ? "start" : "end"}).textContent = data.names[node];
}
function choose(node) { view.node = node; drawCard(); }

// Along λ ------------------------------------------------------------------------------------------------------------
function markLam() {
  const {lams, chosen, errors, spread} = data.path, k = view.lam;
  if (!at("lam")) return;
  const groups = groupSizes(k).length, words = at("lam-words");
  words.replaceChildren(make("b", `λ = ${format(lams[k])}`), `${k === chosen ? " (chosen)" : ""} · ${groups} ${groups === 1 ? "group" : "groups"}`
    + (errors[k] === null ? "" : ` · error in cross-validation ${format(errors[k], 4)}${spread[k] ? " ± " + format(spread[k], 2) : ""}`)
    + (k !== chosen && FIELDS[view.colour].number === undefined && view.colour !== "group" ? " · errors and gains are known at the chosen λ only" : ""));
  at("lam").setAttribute("aria-valuetext", `λ = ${format(lams[k])}`);
  const line = {type: "line", xref: "x", yref: "paper", x0: lams[k], x1: lams[k], y0: 0, y1: 1, line: {color: css("--ink"), width: 1.5, dash: "dot"}};
  if (at("figure-path").data) Plotly.relayout(at("figure-path"), {shapes: [line]});
}
function setLam(k) {
  view.lam = k;
  at("lam").value = k;
  setLam.waiting ??= requestAnimationFrame(() => { setLam.waiting = null; recolour(); }); // once, however fast it moves
}
function play() {
  const button = at("play"), stop = () => { clearInterval(play.timer); play.timer = null; button.textContent = "▶"; };
  if (play.timer) return stop();
  button.textContent = "❚❚";
  if (view.lam === data.path.lams.length - 1) setLam(0);
  play.timer = setInterval(() => view.lam + 1 < data.path.lams.length ? setLam(view.lam + 1) : stop(), 700);
}

function startNetwork() {
  for (const field in FIELDS) at("colour").append(make("option", FIELDS[field].title, {value: field}));
  at("colour").onchange = event => { view.colour = event.target.value; recolour(); };
  at("strokes").onchange = event => { view.strokes = event.target.value; drawNetwork(); };
  if (count <= 5000) at("names").append(...data.names.map(name => make("option", undefined, {value: name})));
  at("find").oninput = event => { const node = data.names.indexOf(event.target.value); choose(node < 0 ? null : node); };
  drawNetwork();
  const map = at("map");
  map.on("plotly_hover", event => { const point = event.points.find(each => each.curveNumber === BINS); if (point) choose(point.pointNumber); });
  map.on("plotly_click", event => { const point = event.points.find(each => each.curveNumber === BINS); if (point) choose(point.pointNumber); });
  for (const event of ["plotly_relayout", "plotly_relayouting", "plotly_afterplot"]) map.on(event, drawOver);
  if (!at("lam")) return;
  at("lam").oninput = event => setLam(Number(event.target.value));
  at("play").onclick = play;
  const step = Math.ceil(data.path.lams.length / (map.clientWidth < 520 ? 5 : 12));
  at("ticks").append(...data.path.lams.map((lam, k) => make("span", k === data.path.chosen ? "▲" : k % step ? "" : format(lam, 2), k === data.path.chosen ? {class: "chosen", title: "chosen"} : {})));
  drawFigure("path");
  at("figure-path").on("plotly_click", event => setLam(event.points[0].pointNumber));
}
