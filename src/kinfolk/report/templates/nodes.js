// The table of nodes: sorted, searched, a page at a time, so that thousands of nodes stay quick.
const ROWS = 20;
const SHOWN = [
  {title: data.nodeTitle, value: node => data.names[node], text: true},
  {title: "group", value: node => data.nodes.group[node], group: true},
  {title: "gain", value: node => data.nodes.gain[node], signed: true},
  {title: "± error", value: node => data.nodes.gain_error[node], digits: 2},
  {title: "error alone", value: node => data.nodes.error_alone[node]},
  {title: "one for all", value: node => data.nodes.error_pooled[node]},
  {title: "tailored", value: node => data.nodes.error_tailored[node]},
  {title: "final", value: node => data.nodes.error_final[node]},
  {title: "training rows", value: node => data.nodes.train_rows[node], digits: 9},
  {title: "test rows", value: node => data.nodes.test_rows[node], digits: 9},
];
const list = {order: [], column: SHOWN.findIndex(column => column.signed), down: true, page: 0};
const inWords = new Intl.Collator("en", {numeric: true, sensitivity: "base"});

/** Numbers by size, texts by alphabet; what is missing comes last either way. */
function compare(a, b) {
  const {value, text} = SHOWN[list.column], x = value(a), y = value(b), turn = list.down ? -1 : 1;
  if (text) return turn * inWords.compare(x, y) || a - b;
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b;
  return turn * (x - y) || a - b;
}
function refresh() {
  const wanted = at("search").value.trim().toLowerCase();
  list.order = Array.from({length: count}, (_, node) => node).filter(node => data.names[node].toLowerCase().includes(wanted)).sort(compare);
  list.page = 0;
  drawTable();
}
/** A gain is coloured only where it is beyond two standard errors. */
function clear(gain, node) {
  return Math.abs(gain) <= 2 * data.nodes.gain_error[node] ? "" : gain > 0 ? "plus" : gain < 0 ? "minus" : "";
}
function cell(column, node) {
  const value = column.value(node);
  if (column === SHOWN[0]) {
    const made = make("td"), link = make("a", value, {href: "#network"});
    link.onclick = () => choose(node);
    made.append(link);
    return made;
  }
  if (column.text) return make("td", value);
  if (column.signed) {
    const text = Number.isNaN(value) ? "–" : `${value > 0 ? "+" : ""}${format(value, 2)} %`;
    return make("td", text, {class: clear(value, node)});
  }
  const made = make("td", format(value, column.digits || 3));
  if (column.group) made.prepend(swatch(value));
  return made;
}
function drawTable() {
  const pages = Math.max(1, Math.ceil(list.order.length / ROWS)), shown = list.order.slice(list.page * ROWS, (list.page + 1) * ROWS);
  at("table").tBodies[0].replaceChildren(...shown.map(node => {
    const row = make("tr");
    row.append(...SHOWN.map(column => cell(column, node)));
    return row;
  }));
  at("table").querySelectorAll("thead th").forEach((head, k) => {
    if (k === list.column) head.setAttribute("aria-sort", list.down ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
    head.firstChild.textContent = SHOWN[k].title + (k === list.column ? (list.down ? " ↓" : " ↑") : "");
  });
  at("count").textContent = `${list.order.length.toLocaleString("en")} of ${count.toLocaleString("en")} nodes`;
  at("page").textContent = `page ${list.page + 1} of ${pages}`;
  at("back").disabled = list.page === 0;
  at("next").disabled = list.page >= pages - 1;
}
function sortBy(k) {
  list.down = k === list.column ? !list.down : !SHOWN[k].text;
  list.column = k;
  refresh();
}
function startNodes() {
  const row = make("tr");
  SHOWN.forEach((column, k) => {
    const head = make("th", undefined, {scope: "col"}), button = make("button", column.title, {type: "button"});
    button.onclick = () => sortBy(k);
    head.append(button);
    row.append(head);
  });
  at("table").tHead.append(row);
  at("search").oninput = refresh;
  at("back").onclick = () => { list.page--; drawTable(); };
  at("next").onclick = () => { list.page++; drawTable(); };
  refresh();
}
