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
  part("details").hidden = job.log.length < (isOver ? 2 : 1);
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
  if (report) card.append(Object.assign(document.createElement("iframe"), {src: address(report), title: `report on ${job.title}`, loading: "lazy"}));
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
