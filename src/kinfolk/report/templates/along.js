// The way along λ: the slider, the words beside it, and the line in the figure of errors.
function lamWords(k) {
  const {chosen, errors, spread} = data.path, groups = groupSizes(k).length;
  const parts = [(k === chosen ? "(chosen) · " : "· ") + counted(groups, "group")];
  if (errors[k] !== null) parts.push(`error in cross-validation ${format(errors[k], 4)}${spread[k] ? " ± " + format(spread[k], 2) : ""}`);
  const fixed = FIELDS[view.colour].number === undefined && view.colour !== "group";
  if (k !== chosen && fixed) parts.push("errors and gains are known at the chosen λ only");
  return parts.join(" · ");
}
function markLam() {
  if (!at("lam")) return;
  const lam = data.path.lams[view.lam], name = `λ = ${format(lam)}`;
  at("lam-words").replaceChildren(make("b", name), " " + lamWords(view.lam));
  at("lam").setAttribute("aria-valuetext", name);
  const mark = {type: "line", xref: "x", yref: "paper", x0: lam, x1: lam, y0: 0, y1: 1,
    line: {color: css("--ink"), width: 1.5, dash: "dot"}};
  if (at("figure-path").data) Plotly.relayout(at("figure-path"), {shapes: [mark]});
}
function setLam(k) {
  view.lam = k;
  at("lam").value = k;
  setLam.waiting ??= requestAnimationFrame(() => { setLam.waiting = null; recolour(); }); // once, however fast it moves
}
function play() {
  const button = at("play"), last = data.path.lams.length - 1;
  const stop = () => { clearInterval(play.timer); play.timer = null; button.textContent = "▶"; };
  if (play.timer) return stop();
  button.textContent = "❚❚";
  if (view.lam === last) setLam(0);
  play.timer = setInterval(() => view.lam < last ? setLam(view.lam + 1) : stop(), 700);
}
function tick(lam, k) {
  if (k === data.path.chosen) return make("span", "▲", {class: "chosen", title: "chosen"});
  const step = Math.ceil(data.path.lams.length / (at("map").clientWidth < 520 ? 5 : 12));
  return make("span", k % step ? "" : format(lam, 2));
}
function startAlong() {
  if (!at("lam")) return;
  at("lam").oninput = event => setLam(Number(event.target.value));
  at("play").onclick = play;
  at("ticks").append(...data.path.lams.map(tick));
  drawFigure("path");
  at("figure-path").on("plotly_click", ({points: [point]}) => setLam(point.curveNumber ? data.path.chosen : point.pointNumber));
}
