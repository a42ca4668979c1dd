// What colours mean, and the node under the pointer: its numbers, and lines to its neighbours.
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
      item.append(swatch(group), `group ${group}: ${counted(size, "node")}`);
      legend.append(item);
    }
    if (sizes.length > 16) legend.append(make("span", `and ${sizes.length - 16} more groups`));
    return;
  }
  const [low, high] = rangeOf(view.colour), unit = field.unit || "", scale = make("span", undefined, {class: "scale"});
  scale.style.background = `linear-gradient(90deg, ${(field.scale === "around" ? around() : sequence()).join(", ")})`;
  legend.append(make("span", format(low, 2) + unit), scale, make("span", format(high, 2) + unit), make("span", field.title));
  let lost = 0;
  for (let node = 0; node < count; node++) lost += !Number.isFinite(valueOf(view.colour, node));
  const what = field.number === undefined ? "test rows" : "a model";
  if (lost) legend.append(make("span", `grey: ${counted(lost, "node")} without ${what}`));
}

// The node under the pointer -----------------------------------------------------------------------------------------
const ERRORS = {alone: "error alone", pooled: "error, one model for all", tailored: "error, tailored", final: "error, the blend"};
const HINT = "Point at a node, or click it, to see its rows, its errors and its neighbours.";

function drawCard() {
  const card = at("card"), node = view.node;
  card.replaceChildren();
  drawOver();
  if (node === null) {
    card.removeAttribute("data-node");
    card.append(make("p", HINT, {class: "small hint"}));
    return;
  }
  card.dataset.node = data.names[node];
  card.append(make("h3", data.names[node]), groupLine(node), numbersOf(node), neighbourLine(node));
}
function numbersOf(node) {
  const list = make("dl"), of = name => data.nodes[name][node];
  const add = (name, value, best) => {
    const row = make("div");
    row.append(make("dt", name), make("dd", value, best ? {class: "best"} : {}));
    list.append(row);
  };
  if (FIELDS[view.colour].number !== undefined) add(FIELDS[view.colour].title, format(valueOf(view.colour, node)), true);
  add("training rows", format(of("train_rows"), 9));
  add("test rows", format(of("test_rows"), 9));
  if (of("test_rows")) {
    const least = Math.min(...Object.keys(ERRORS).map(name => of("error_" + name)).filter(Number.isFinite));
    for (const name in ERRORS) add(ERRORS[name], format(of("error_" + name)), of("error_" + name) === least);
    add("gain over the better baseline", Number.isFinite(of("gain")) ? `${format(of("gain"), 2)} ± ${format(of("gain_error"), 2)} %` : "–");
  }
  return list;
}
function groupLine(node) {
  const line = make("div", undefined, {class: "small"});
  line.append(swatch(groupAt(view.lam, node)), ` group ${groupAt(view.lam, node)}`);
  return line;
}
function neighbourLine(node) {
  const near = neighbours[node].slice().sort((a, b) => data.flow[b[1]] - data.flow[a[1]]); // who pulls most comes first
  const shown = near.slice(0, 8).map(([other]) => data.names[other]).join(", ");
  const rest = near.length > 8 ? ` and ${near.length - 8} more` : "";
  return make("p", near.length ? `${counted(near.length, "neighbour")}: ${shown}${rest}` : "no neighbours", {class: "small"});
}
/** Lines to the neighbours and a ring, drawn over the map: quick, since the map itself is not drawn again. */
function drawOver() {
  const over = at("over"), shown = at("map")._fullLayout, node = view.node;
  over.replaceChildren();
  if (node === null || !shown || !shown.xaxis) return;
  const place = (axis, value) => axis._offset + axis.l2p(value);
  const spot = k => [place(shown.xaxis, data.x[k]), place(shown.yaxis, data.y[k])];
  const add = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const name in attributes) made.setAttribute(name, attributes[name]);
    over.append(made);
    return made;
  };
  const [x, y] = spot(node), reach = nodeSize() / 2, values = data[view.strokes === "flow" ? "flow" : "weight"];
  const strongest = Math.max(...neighbours[node].map(([, edge]) => values[edge])) || 1;
  for (const [other, edge] of neighbours[node]) {
    const [x2, y2] = spot(other);
    add("line", {x1: x, y1: y, x2, y2, "stroke-width": (1 + 2.5 * values[edge] / strongest).toFixed(2)});
  }
  add("circle", {cx: x, cy: y, r: reach + 4});
  if (count <= FEW) return; // the name stands there already
  const side = x < shown.width * 0.6 ? 1 : -1;
  add("text", {x: x + side * (reach + 10), y: y + 4, "text-anchor": side > 0 ? "start" : "end"}).textContent = data.names[node];
}
function choose(node) { view.node = node; drawCard(); }
