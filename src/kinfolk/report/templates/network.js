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
  const few = count <= FEW, paper = css("--paper");
  const plain = name => name.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // no markup from names
  return {
    type: kind, mode: few ? "markers+text" : "markers", x: data.x, y: data.y, hoverinfo: "none", showlegend: false,
    cliponaxis: false, text: few ? data.names.map(plain) : undefined, textposition: "top center",
    textfont: {color: css("--ink"), size: 12, shadow: `0 0 3px ${paper}, 0 0 3px ${paper}`},
    marker: {color: nodeColours(), symbol: nodeSymbols(), size: nodeSize(), opacity: 1,
      line: {width: many ? 0.4 : 1, color: css("--rim")}},
  };
}
function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  return [low, high];
}
/** One trace for each width of line: edges whose weight or flow is a like share of the largest. */
function edgeTraces() {
  const fine = Math.max(0.35, Math.min(1, 10 / Math.sqrt(data.weight.length))); // the more lines, the finer
  const colour = css(view.strokes === "flow" ? "--flow" : "--edge");
  const traces = Array.from({length: BINS}, (_, bin) => ({
    type: kind, mode: "lines", x: [], y: [], hoverinfo: "skip", showlegend: false, opacity: 0.3 + 0.12 * bin,
    line: {color: colour, width: Math.max(0.5, (1 + bin) * fine)},
  }));
  if (view.strokes === "none") return traces;
  const [low, high] = extent(data[view.strokes]), same = high - low <= 1e-6 * high;
  data[view.strokes].forEach((value, edge) => {
    const {x, y} = traces[same ? 1 : Math.min(BINS - 1, Math.floor(BINS * value / high))];
    x.push(data.x[data.head[edge]], data.x[data.tail[edge]], null);
    y.push(data.y[data.head[edge]], data.y[data.tail[edge]], null);
  });
  return traces;
}
/** As high as the network is, at this width. */
function fitHeight() {
  const map = at("map"), [left, right] = extent(data.x), [low, high] = extent(data.y);
  const height = map.clientWidth * (high - low) / (right - left || 1) + 40;
  map.style.height = Math.round(Math.max(240, Math.min(640, height))) + "px";
}
function drawNetwork() {
  fitHeight();
  const hidden = {visible: false};
  const layout = {
    ...themed({xaxis: hidden, yaxis: {...hidden, scaleanchor: "x"}}), margin: {l: 12, r: 12, t: 12, b: 12},
    uirevision: "same", hovermode: "closest", hoverdistance: 24, dragmode: touched ? false : "pan",
  };
  const buttons = {displayModeBar: true, modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d"]]};
  Plotly.react(at("map"), [...edgeTraces(), nodeTrace()], layout, {...config, ...buttons});
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

function startNetwork() {
  for (const field in FIELDS) at("colour").append(make("option", FIELDS[field].title, {value: field}));
  at("colour").onchange = event => { view.colour = event.target.value; recolour(); };
  at("strokes").onchange = event => { view.strokes = event.target.value; drawNetwork(); };
  if (count <= 5000) at("names").append(...data.names.map(name => make("option", undefined, {value: name})));
  at("find").oninput = event => {
    const node = data.names.indexOf(event.target.value);
    choose(node < 0 ? null : node);
  };
  drawNetwork();
  const pointed = event => {
    const point = event.points.find(each => each.curveNumber === BINS);
    if (point) choose(point.pointNumber);
  };
  for (const event of ["plotly_hover", "plotly_click"]) at("map").on(event, pointed);
  for (const event of ["plotly_relayout", "plotly_relayouting", "plotly_afterplot"]) at("map").on(event, drawOver);
}
