"use strict";
const byId = (id) => document.getElementById(id);
const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const SECONDS_BETWEEN_LOOKS = 0.7;

// ---- From files to inputs: each file is {path, file}, its path from the folder that was dropped.

const STORE = /(^|\/)(\.zgroup|\.zattrs|\.zmetadata|zarr\.json)$/;
const MATRIX = /matrix\.mtx(\.gz)?$/i;
const PART = /(\.mtx|(barcodes|features|genes|rows|cols|cell_metadata|all_genes)\.(tsv|txt|csv)|\.mtx_(rows|cols))(\.gz)?$/i;
const CELLS = /\.(h5ad|h5|hdf5|loom|rds)$/i;
const TABLE = /\.(csv|tsv|tab|txt)(\.gz)?$/i;
const NOT_FILTERED = /(^|\/)(raw_|molecule_info|sample_molecule_info)/;  // beside Cell Ranger's filtered matrix

function inputsOf(found) {  // a Map of the title of each input to its files
  const folderOf = ({path}) => path.slice(0, path.lastIndexOf("/") + 1);
  const stores = found.filter(({path}) => STORE.test(path)).map(folderOf)
    .filter((store, _, all) => store && !all.some((other) => other !== store && store.startsWith(other)));
  const inputs = new Map(stores.map((store) => [store.slice(0, -1), found.filter(({path}) => path.startsWith(store))]));
  const isHidden = ({path}) => path.split("/").at(-1).startsWith(".");
  const rest = found.filter((each) => !isHidden(each) && !stores.some((store) => each.path.startsWith(store)));
  for (const folder of new Set(rest.filter(({path}) => /\.mtx(\.gz)?$/i.test(path)).map(folderOf))) {
    const parts = rest.filter((each) => folderOf(each) === folder && PART.test(each.path));
    const prefixes = parts.filter(({path}) => MATRIX.test(path)).map(({path}) => path.replace(MATRIX, ""));
    for (const prefix of prefixes.length ? prefixes : [folder]) {
      const name = prefix.replace(/[-_./]$/, ""), of = parts.filter(({path}) => path.startsWith(prefix));
      const moved = of.map(({path, file}) => ({path: name ? `${name}/${file.name}` : path, file}));
      inputs.set(name || of.map(({file}) => file.name).join(", "), moved);
    }
    parts.forEach((each) => rest.splice(rest.indexOf(each), 1));
  }
  const inside = rest.filter(folderOf);
  const cells = inside.filter(({path}) => CELLS.test(path));
  const others = cells.length || inputs.size ? cells : inside.filter(({path}) => TABLE.test(path));
  for (const each of [...rest.filter((one) => !folderOf(one)), ...others]) inputs.set(each.path, [each]);
  const names = [...inputs.keys()], filtered = names.filter((name) => !NOT_FILTERED.test(name));
  for (const name of names.filter((each) => each.includes("/"))) {
    if ((filtered.length && NOT_FILTERED.test(name)) || inputs.has(`${name}.h5`)) inputs.delete(name);
  }
  return inputs;
}

async function filesIn(entry, found = []) {  // of a folder that was dropped
  if (entry.isFile) {
    found.push({path: entry.fullPath.slice(1), file: await new Promise((done, failed) => entry.file(done, failed))});
    return found;
  }
  const reader = entry.createReader();
  for (let some = null; !some || some.length;) {  // a part of the folder at a time
    some = await new Promise((done, failed) => reader.readEntries(done, failed));
    for (const each of some) await filesIn(each, found);
  }
  return found;
}

// ---- Jobs of this page that the server does not have yet: their files wait, are copied, or cannot be.

const outbox = new Map();
const removed = new Set();
let sending = Promise.resolve();  // one job at a time: a browser has six connections to a host

function post(title, files, options) {
  const name = Array.from(crypto.getRandomValues(new Uint8Array(16)), (x) => x.toString(16).padStart(2, "0")).join("");
  const job = {name, title, state: "copying", log: [], files: [], share: null, stop: new AbortController()};
  outbox.set(name, job);
  sending = sending.then(() => deliver(job, files, options));
  showAll();
}

function refuse(job, text) {
  outbox.set(job.name, {...job, state: "refused", log: [`error: ${text}`]});
  showAll();
}

async function deliver(job, files, options) {
  if (removed.has(job.name)) return;
  const query = new URLSearchParams({title: job.title, size: files.reduce((sum, {file}) => sum + file.size, 0)});
  const requests = files.map(({path, file}) => [`/${path.split("/").map(encodeURIComponent).join("/")}?${query}`, "PUT", file]);
  try {
    for (const [path, method, body] of [...requests, ["", "POST", JSON.stringify(options)]]) {
      const answer = await fetch(`jobs/${job.name}${path}`, {method, body, signal: job.stop.signal});
      if (!answer.ok) break;  // the server says why, in its state of the job
    }
    outbox.delete(job.name);
    await look();
  } catch {
    if (!removed.has(job.name)) refuse(job, "the copy is not complete: the browser cannot read the file, or the program has ended");
  }
}

// ---- Jobs of the server, which all pages show.

let jobs = [];
let hasEnded = false;

async function look() {
  try {
    jobs = await (await fetch("jobs")).json();
    hasEnded = false;
  } catch {
    hasEnded = true;
  }
  showAll();
}

function remove(name) {
  removed.add(name);
  outbox.get(name)?.stop.abort();
  outbox.delete(name);
  fetch(`jobs/${name}`, {method: "DELETE"}).catch(() => {});
  showAll();
}

function allJobs() {
  const known = new Set(jobs.map(({name}) => name));
  const own = (job) => job.state === "copying" && outbox.get(job.name)?.state === "refused" ? outbox.get(job.name) : job;
  return [...jobs.map(own), ...[...outbox.values()].filter(({name}) => !known.has(name))].filter(({name}) => !removed.has(name));
}

// ---- Cards, one for each job.

const cards = new Map();
const KINDS = [
  [".report.html", "Open the report"],
  [".calls.csv", "Save the table of calls"],
  [".annotated.h5ad", "Save the annotated cells"],
  [".clusters.tsv", "Save the table of clusters"],
  [".curated.h5ad", "Save the named cells"],
  [".curated.csv", "Save the names as a table"],
  [".curated.rds", "Save the names for R"],
  [".model.zip", "Save the model"],
];

const annotated = () => allJobs().filter(({files}) => files.some((file) => file.endsWith(".annotated.h5ad")));
const chosen = () => annotated().filter(({name}) => cards.get(name).part(".common input").checked);

function showAll() {
  const all = allJobs();
  byId("ended").hidden = !hasEnded;
  document.body.classList.toggle("has-ended", hasEnded);
  for (const [name, {card}] of cards) if (!all.some((job) => job.name === name)) { card.remove(); cards.delete(name); }
  all.forEach(show);
  const done = annotated(), num = chosen().length;
  for (const {name} of done) cards.get(name).part(".common").hidden = done.length < 2;
  byId("together").hidden = done.length < 2;
  byId("together").querySelector("span").textContent = `of the ${num} files that are checked below`;
  byId("together").querySelector("button").disabled = num < 2;
  showModels(all.filter(({model}) => model));
}

function showModels(made) {  // the newest is selected when it is there, also after the page was loaded again
  const own = byId("own"), known = [...own.children].map(({value}) => value), now = made.map(({model}) => `model_path=${model}`);
  own.hidden = !made.length;
  if (known.join() === now.join()) return;
  const before = byId("model").value;
  own.replaceChildren(...made.map(({title}, place) => new Option(title, now[place])));
  byId("model").value = now.findLast((value) => !known.includes(value)) ?? (!known.includes(before) || now.includes(before) ? before : "");
}

function newCard(name) {
  const card = byId("job").content.firstElementChild.cloneNode(true);
  const part = (selector) => card.querySelector(selector);
  part(".remove").onclick = () => remove(name);
  part(".common input").onchange = showAll;
  byId("jobs").prepend(card);
  cards.set(name, {card, part, shown: ""});
  return cards.get(name);
}

function show(job) {
  const known = cards.get(job.name) || newCard(job.name), {card, part} = known;
  const now = JSON.stringify([job.title, job.state, job.log, job.files, job.share]);
  if (known.shown === now) return;
  known.shown = now;
  const isOver = ["done", "refused"].includes(job.state), error = job.log.findLast((line) => line.includes("error: "));
  part("h2").textContent = job.title;
  part("progress").hidden = isOver;
  if (job.state === "copying" && job.share !== null) part("progress").value = job.share;
  else part("progress").removeAttribute("value");
  part(".status").textContent = isOver || job.state === "copying" ? job.state : job.log.at(-1) || job.state;
  part(".status").hidden = job.state === "refused";
  part(".refused").hidden = job.state !== "refused";
  part(".refused").textContent = job.state === "refused" ? error || job.log.at(-1) : "";
  part(".messages").hidden = job.log.length < (isOver ? 2 : 1);
  part("pre").textContent = job.log.join("\n");
  part(".remove").textContent = !isOver ? "Stop and remove" : job.state === "done" ? "Remove these results" : "Remove";
  const address = (file) => `jobs/${job.name}/${encodeURIComponent(file)}`;
  part(".files").replaceChildren(...KINDS.flatMap(([ending, use]) => job.files.filter((file) => file.endsWith(ending)).map((file) => {
    const link = Object.assign(document.createElement("a"), {href: address(file), className: "button", textContent: use});
    if (ending === ".report.html") link.target = "_blank";
    link.append(Object.assign(document.createElement("span"), {className: "sub", textContent: file}));
    return link;
  })));
  const report = job.files.find((file) => file.endsWith(".report.html"));
  if (report && job.clusters?.length) nameClusters(job, part, address(report));
  if (report) card.append(Object.assign(document.createElement("iframe"), {src: address(report), title: `report on ${job.title}`, loading: "lazy"}));
}

// ---- Clusters and their names, which the server keeps; the map is that of the report.

function nameClusters(job, part, report) {
  const naming = part(".naming"), calls = new Map();
  naming.hidden = false;
  naming.open = !document.querySelector(".naming[open]");  // browsers draw few maps at a time
  const send = () => fetch(`jobs/${job.name}/names`, {method: "POST", body: JSON.stringify(job.names)}).catch(() => {});
  part(".naming tbody").replaceChildren(...job.clusters.map((row) => {
    const line = document.createElement("tr"), cell = (text, kind = "td") => Object.assign(document.createElement(kind), {textContent: text ?? ""});
    const name = Object.assign(document.createElement("input"), {value: job.names[row.cluster] ?? "", spellcheck: false, maxLength: 200});
    name.setAttribute("list", "types");
    name.setAttribute("aria-label", `name of cluster ${row.cluster}`);
    name.onchange = () => { job.names[row.cluster] = name.value; send(); redraw(); };
    calls.set(row.cluster, name);
    const field = cell(""), markers = Object.assign(cell(""), {className: "markers"});
    field.append(name);
    markers.append(...(row.markers ?? "").split(", ").filter(Boolean).map((gene) => {
      const button = Object.assign(cell(gene, "button"), {type: "button", tabIndex: -1, title: `colour the map by ${gene}`});
      button.onclick = () => { part(".gene").value = gene; byGene(gene); };
      return button;
    }));
    const number = (text, title) => Object.assign(cell(text), {className: "number", title});
    line.append(cell(row.cluster, "th"), field, number(Number(row.cells).toLocaleString(), "cells"), cell(row.calls),
      number(Number(row.confidence).toFixed(2), "confidence"), cell(row.looks_like), markers);
    return line;
  }));
  for (const button of naming.querySelectorAll("[data-make]")) button.onclick = () => post(job.title, [], {of: [job.name], make: button.dataset.make});

  let map = null, column = null;
  const words = (text) => new DOMParser().parseFromString(text, "text/html").body.textContent;
  const redraw = () => column?.name === "Your names" ? draw(yours()) : null;
  const cluster = () => map.columns.find(({name}) => name === "Cluster");
  const yours = () => {
    const names = cluster().values.map(({name}) => job.names[words(name)]?.trim() || "not named"), values = [...new Set(names)];
    const palette = values.map((name, place) => ({name, colour: name === "not named" ? "#c3cad1" : map.columns[0].values[place % map.columns[0].values.length].colour}));
    return {name: "Your names", values: palette, codes: cluster().codes.map((code) => values.indexOf(names[code]))};
  };
  const draw = (next) => {
    column = next;
    const dark = matchMedia("(prefers-color-scheme: dark)").matches, all = [...map.x.keys()], text = all.map((i) => `cluster ${cluster().values[cluster().codes[i]].name}`);
    const points = (cells, marker) => ({type: "scattergl", mode: "markers", x: cells.map((i) => map.x[i]), y: cells.map((i) => map.y[i]), text: cells.map((i) => text[i]), hoverinfo: "text", marker: {size: Math.min(7, Math.max(3, 420 / Math.sqrt(all.length))), ...marker}});
    const {numbers, values, codes} = column;
    const order = numbers && all.sort((i, j) => numbers[i] - numbers[j]);
    const traces = numbers ? [points(order, {color: order.map((i) => numbers[i]), cmin: 0, cmax: column.highest, colorscale: column.scale, colorbar: {thickness: 12, len: 0.6}})]
      : values.map(({colour, symbol}, code) => points(all.filter((i) => codes[i] === code), {color: colour, symbol}));
    const axis = {visible: false}, ink = dark ? "#e6ebf0" : "#1d2733";
    const layout = {margin: {l: 0, r: 0, t: 0, b: 0}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: ink}, showlegend: false, xaxis: axis, yaxis: {...axis}, hovermode: "closest", uirevision: "map"};
    Plotly.react(part(".map"), traces, layout, {responsive: true, displaylogo: false, displayModeBar: false});
    const inOrder = [...values ?? []].sort((a, b) => a.name.localeCompare(b.name, undefined, {numeric: true}));
    part(".legend").replaceChildren(...inOrder.map(({name, colour}) => {
      const entry = document.createElement("span"), mark = Object.assign(document.createElement("span"), {textContent: "● "});
      mark.style.color = colour;
      entry.append(mark, column.name === "Your names" ? name : words(name));
      return entry;
    }));
  };
  const byGene = async (gene) => {
    const answer = gene && await fetch(`jobs/${job.name}/genes/${encodeURIComponent(gene)}`);
    part(".said").textContent = gene && !answer.ok ? `no gene ${gene}` : "";
    if (!gene || !answer.ok) return;
    const numbers = await answer.json();
    draw({name: gene, numbers, scale: map.scale, highest: Math.max(1, ...numbers)});
    part(".said").textContent = `expression of ${gene}`;
  };
  const start = async () => {
    if (map || !naming.open) return;
    const page = new DOMParser().parseFromString(await (await fetch(report)).text(), "text/html");
    const data = JSON.parse(page.getElementById("report-data").textContent);
    while (!window.Plotly) await wait(0.1);  // its script is still loading
    map = data.maps[0];
    part(".look").hidden = part(".map").hidden = !map;
    if (!map) return;
    map.scale = (map.columns.find(({name}) => name === "Novelty") ?? map.columns.find(({numbers}) => numbers)).scale;
    const choices = map.columns.filter(({name}) => name !== "Sample");
    part(".look select").replaceChildren(...[...choices, {name: "Your names"}].map(({name}, place) => new Option(words(name), place)));
    part(".look select").onchange = ({target}) => { part(".gene").value = part(".said").textContent = ""; draw(choices[target.value] ?? yours()); };
    part(".look select").value = choices.indexOf(cluster());
    draw(cluster());
    for (const {name} of map.columns[0].values) if (![...byId("types").options].some(({value}) => value === words(name))) byId("types").append(new Option("", words(name)));
    part(".map").on("plotly_click", ({points: [{text}]}) => calls.get(words(text).slice(8))?.focus());
  };
  part(".gene").onchange = ({target}) => byGene(target.value.trim());
  naming.ontoggle = start;
  start();
}

// ---- What the user does.

function choice() {
  const folder = byId("folder").value.trim();
  const [kind, value] = folder ? ["model_path", folder] : byId("model").value.split("=");
  return value ? {[kind]: value} : {};
}

function take(found, folder) {
  const inputs = inputsOf(found);
  for (const [title, files] of inputs) post(title, files, choice());
  if (!inputs.size) {
    const wanted = "h5ad, 10x .h5, rds, loom, zarr, or matrix.mtx with barcodes and features";
    const job = {name: `folder-${outbox.size}`, title: folder, files: [], share: null, stop: new AbortController()};
    refuse(job, `no file of cells in this folder; expected ${wanted}: drop the files themselves, of matrix.mtx its three files.`);
  }
}

const loose = (files) => [...files].map((file) => ({path: file.name, file}));

async function drop({items, files}) {
  const entries = [...items].map((item) => item.webkitGetAsEntry()), folders = entries.filter((entry) => entry?.isDirectory);
  const names = new Set(folders.map(({name}) => name));
  const alone = loose(files).filter(({path}) => !names.has(path));
  if (alone.length) take(alone);
  for (const folder of folders) take(await filesIn(folder), folder.name);
}

byId("choose").onclick = () => byId("files").click();
byId("choose-folder").onclick = () => byId("folders").click();
byId("files").onchange = ({target}) => { take(loose(target.files)); target.value = ""; };
byId("folders").onchange = ({target}) => {
  const found = [...target.files].map((file) => ({path: file.webkitRelativePath, file}));
  if (found.length) take(found, found[0].path.split("/")[0]);
  target.value = "";
};
byId("in-place").onsubmit = (event) => {
  event.preventDefault();
  const path = byId("path").value.trim();
  if (path) post(path, [], {path, ...choice()});
  byId("path").value = "";
};
byId("together").querySelector("button").onclick = () => post("Report", [], {of: chosen().map(({name}) => name)});
for (const name of ["dragover", "dragleave", "drop"]) document.addEventListener(name, (event) => {
  event.preventDefault();
  byId("drop").classList.toggle("over", name === "dragover");
  if (name === "drop") drop(event.dataTransfer);
});
addEventListener("beforeunload", (event) => {
  if (hasEnded || !allJobs().some(({state}) => ["copying", "waiting", "running"].includes(state))) return;
  event.preventDefault();
  event.returnValue = true;
});
(async () => { for (;; await wait(SECONDS_BETWEEN_LOOKS)) await look(); })();
