// The blend: what each member contributes to the prediction of a held-out row.
function drawParts(row) {
  const body = document.querySelector("#parts tbody"), blend = data.blend;
  body.replaceChildren();
  const add = (cells, head) => {
    const line = make("tr", undefined, head ? {class: "final"} : {});
    cells.forEach((text, k) => line.append(make(k ? "td" : "th", text, k ? {} : {scope: "row"})));
    body.append(line);
  };
  const classes = blend.classes;
  document.querySelector("#parts caption").textContent = `Held-out row ${blend.nodes[row]}`;
  document.querySelector("#parts th:nth-child(2)").textContent = classes ? `probability of ${classes[row]}` : "predicts";
  let sum = 0;
  blend.titles.forEach((title, k) => {
    const predicted = blend.predicted[k][row], part = blend.weights[k] * predicted;
    sum += part;
    add([title, format(predicted, 4), `${(100 * blend.weights[k]).toFixed(0)} %`, format(part, 4)]);
  });
  add(["the blend", format(sum, 4), "100 %", `truth ${classes ? blend.truth[row] : format(blend.truth[row], 4)}`], true);
}
function startBlend() {
  const choice = at("row");
  data.blend.nodes.forEach((name, k) => choice.append(make("option", name, {value: k})));
  choice.addEventListener("change", () => drawParts(Number(choice.value)));
  drawParts(0);
}
