"use strict";
const $ = id => document.getElementById(id);
const json = id => JSON.parse($(id).textContent);
const DATA = json("data"), PER_PAGE = 48;
const texts = (all, numbers) => numbers.map(value => typeof value === "number" ? all[value] : value);
const VIDEOS = json("rows").map((row, number) => {
  const v = { number };
  DATA.fields.forEach((name, i) => { v[name] = DATA[name] ? texts(DATA[name], row[i]) : row[i]; });
  v.words = [v.path, v.caption, ...v.labels].join("\n").toLowerCase();
  return v;
});
const BY_KEY = new Map(VIDEOS.map(v => [v.key, v]));
const state = { search: "", label: "", trait: "", sort: "path", page: 0, ranges: new Map() };
let shown = VIDEOS, drawn = 0;
// Everything from the cache is set as a property or as text, never as markup
function el(tag, props = {}, ...children) {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children);
  return node;
}
function svg(className, size, d) {
  const [node, path] = ["svg", "path"].map(tag => document.createElementNS("http://www.w3.org/2000/svg", tag));
  const set = (name, value) => node.setAttribute(name, value);
  set("class", className), set("viewBox", `0 0 ${size} ${size}`), set("preserveAspectRatio", "none"), set("aria-hidden", "true");
  path.setAttribute("d", d);
  node.append(path);
  return node;
}
const number = (x, digits = 2) => x.toLocaleString("en-US", { maximumFractionDigits: digits });
const size = b => { const i = Math.min(3, Math.floor(Math.log10(Math.max(1, b)) / 3)); return number(b / 1e3 ** i, b / 1e3 ** i < 100 ? 1 : 0) + [" B", " kB", " MB", " GB"][i]; };
const clock = s => s < 60 ? number(s) + " s" : `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")} min`;
const button = (textContent, onclick, props = {}) => el("button", { type: "button", textContent, onclick, ...props });

// Details and pictures are parsed in blocks, when one of their videos is first seen
const blocks = new Map();
function details(v) {
  const name = "b" + Math.floor(v.number / DATA.per_block);
  if (!blocks.has(name)) blocks.set(name, json(name));
  return blocks.get(name)[v.number % DATA.per_block];
}
function sprite(node, v, d, cell, top, height) {
  const [, h, cells, frames, flow, mel] = d.layout, whole = h * (frames + flow) + mel;
  node.style.backgroundImage = `url("data:image/webp;base64,${d.picture}")`;
  node.style.backgroundSize = `${cell === null ? 100 : cells * 100}% ${whole / height * 100}%`;
  node.style.backgroundPosition = `${cell === null || cells < 2 ? 0 : cell / (cells - 1) * 100}% ${whole > height ? top / (whole - height) * 100 : 0}%`;
}
const shares = curve => Array.from(atob(curve[1]), c => c.charCodeAt(0) === 255 ? null : c.charCodeAt(0) / 254);
// The grid
function order() {
  const name = state.sort.replace("-", ""), sign = state.sort[0] === "-" ? -1 : 1;
  const value = v => name === "labels" ? v.labels[0] ?? null : v[name];
  const compare = (x, y) => x === y ? 0 : x === null ? 1 : y === null ? -1 : sign * (x < y ? -1 : 1);
  VIDEOS.sort((a, b) => compare(value(a), value(b)) || (a.path < b.path ? -1 : a.path > b.path ? 1 : a.number - b.number));
}
function apply() {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean), ranges = [...state.ranges.values()];
  shown = VIDEOS.filter(v => (!state.label || v.labels.includes(state.label)) && (!state.trait || v.traits.includes(state.trait))
    && words.every(word => v.words.includes(word) || v.key.toLowerCase() === word) && ranges.every(r => v[r.field] !== null && v[r.field] >= r.from && v[r.field] < r.to));
  draw(0);
}
function draw(page) {
  state.page = page;
  const pages = Math.max(1, Math.ceil(shown.length / PER_PAGE)), tiles = shown.slice(state.page * PER_PAGE, (state.page + 1) * PER_PAGE).map(tile);
  $("count").textContent = `${number(shown.length)} of ${number(VIDEOS.length)} videos${DATA.sample ? `, ${DATA.sample}` : ""}`;
  $("place").textContent = `Page ${state.page + 1} of ${pages}`;
  $("pager").hidden = pages < 2;
  [$("back").disabled, $("forward").disabled] = [!state.page, state.page + 1 >= pages];
  $("grid").replaceChildren(...(tiles.length ? tiles : [el("p", { className: "note", textContent: "No video matches." })]));
  $("ranges").replaceChildren(...[...state.ranges.values()].map(r => button(`${r.text} ✕`, r.clear, { className: "chip", ariaLabel: `Remove filter ${r.text}` })));
}
const observer = new IntersectionObserver(seen => seen.filter(e => e.isIntersecting).forEach(({ target }) => {
  observer.unobserve(target);
  fill(target, BY_KEY.get(target.hash.slice(1)));
}), { rootMargin: "400px" });
function tile(v) {
  const facts = [v.seconds === null ? "" : clock(v.seconds), v.width ? `${v.width}×${v.height}` : "", v.fps ? number(v.fps, 1) + " fps" : ""];
  const node = el("a", { className: "tile", href: "#" + v.key }, el("span", { className: "picture" }), el("bdi", { className: "name", textContent: v.path, title: v.path }));
  if (v.caption) node.append(el("bdi", { className: "caption", textContent: v.caption, title: v.caption }));
  node.append(el("span", { className: "facts" }, el("bdi", { textContent: v.labels.join(", ") }), el("span", { textContent: facts.filter(Boolean).join(" · ") })));
  observer.observe(node);
  return node;
}
function fill(node, v) {
  const d = details(v), box = node.querySelector(".picture"), lines = (d.curves || []).map(curve => {
    const y = shares(curve).map(share => 1 - (share ?? 0)), n = y.length;
    return svg(curve[0], 1, `M0 1${y.map((value, i) => `L${i / n} ${value}L${(i + 1) / n} ${value}`).join("")}L1 1Z`);
  });
  node.append(el("span", { className: "lines" }, ...lines));
  const has_frames = d.layout && d.layout[3], note = d.problems ? "Damaged: " + d.problems[0] : has_frames ? "" : DATA.empty;
  if (note) box.append(el("span", { className: d.problems ? "empty bad" : "empty", textContent: note }));
  if (!has_frames) return;
  const [w, h, cells] = d.layout, cell = el("span", { className: "cell" }), at = i => sprite(cell, v, d, Math.min(cells - 1, Math.max(0, i)), 0, h);
  Object.assign(cell.style, { aspectRatio: `${w} / ${h}`, [w < h * 16 / 9 ? "height" : "width"]: "100%" });
  at(cells >> 1);
  box.prepend(cell);
  box.onpointermove = e => { const r = box.getBoundingClientRect(); at(Math.floor((e.clientX - r.left) / r.width * cells)); };
  box.onpointerleave = () => at(cells >> 1);
}
// One video, on one axis of seconds
const CURVES = { motion: ["codec motion", "px"], luma: ["luma change", "gray levels"], sound: ["sound", "dB"] };
const BONES = [[11, 12, 24, 23, 11, 13, 15], [12, 14, 16], [23, 25, 27, 31], [24, 26, 28, 32], [7, 3, 0, 6, 8]];
function track(name, note, ...content) {
  return el("div", { className: "track" }, el("div", { className: "gutter" }, el("b", { textContent: name }), el("small", { textContent: note })),
    el("div", { className: "lane" }, ...content));
}
function slots(v, d, top, pose) {
  const [w, h] = d.layout;
  return el("div", { className: "slots" }, ...d.times.map((time, i) => {
    const picture = el("span", { className: "cell" });
    Object.assign(picture.style, { aspectRatio: `${w} / ${h}`, width: `min(100%, ${150 * w / h}px)` });
    sprite(picture, v, d, i, top, h);
    if (pose && pose[i]) picture.append(svg("pose", 1000, BONES.map(bone => bone.filter(j => pose[i][2 * j] >= 0)
      .map((j, k) => `${k ? "L" : "M"}${pose[i][2 * j]} ${pose[i][2 * j + 1]}`).join("")).join("") || "M0 0"));
    return el("span", { className: "slot" }, picture, ...(top ? [] : [el("small", { textContent: number(time) + " s" })]));
  }));
}
function at(v, tag, props, start, stop) {
  const node = el(tag, props), clamp = x => Math.min(1, Math.max(0, x / v.seconds)), from = clamp(start ?? 0);
  node.style.left = `${from * 100}%`;
  if (stop !== undefined) node.style.width = `max(3px, ${(clamp(stop ?? v.seconds) - from) * 100}%)`;
  return node;
}
function tracks(v, d) {
  const [, h, , frames, flow, mel] = d.layout || [0, 0, 0, 0, 0, 0], nodes = [], add = (...parts) => nodes.push(track(...parts));
  const ticks = (times, className) => times.map(time => at(v, "i", { className, title: number(time) + " s" }, time));
  if (frames) add("frames", d.pose ? "with pose" : "", slots(v, d, 0, d.pose));
  if (d.keyframes) add("keyframes", "", ...ticks(d.keyframes, "tick"));
  for (const curve of d.curves || []) nodes.push(curveTrack(v, curve, curve[0] === "sound" ? ticks(d.peaks || [], "peak") : []));
  if (mel) add("mel", "0 to -80 dB, low notes below", el("span", { className: "mel" }));
  if (mel) sprite(nodes.at(-1).lastChild.firstChild, v, d, null, h * (frames + flow), mel);
  if (flow) add("flow", `full color: ${number(d.flow)} px`, slots(v, d, h * frames, null));
  if (flow) nodes.at(-1).firstChild.append(el("span", { className: "wheel", title: "The color of each direction, pale if short" }));
  const parts = VIDEOS.filter(w => w !== v && w.path === v.path && w.seconds && w.start < v.start + v.seconds && w.start + w.seconds > v.start);
  if (parts.length) add("segments", "others of this file", ...parts.map((w, i) => at(v, "a", { className: `part row${i % 3}`, href: "#" + w.key,
    textContent: w.labels[0] || w.caption || w.key }, w.start - v.start, w.start - v.start + w.seconds)));
  if (d.marks && d.marks.length) add("annotations", "", ...d.marks.map(([time, text]) => at(v, "bdi", { className: "mark", textContent: text, title: `${time} s: ${text}` }, time)));
  return nodes;
}
function curveTrack(v, [name, data, low, high, step], marks) {
  const [title, unit] = CURVES[name], y = shares([name, data]), node = track(title, `${number(low)} to ${number(high)} ${unit}`, ...marks);
  const values = [...y, y.at(-1)].map(share => share === null ? null : low + share * (high - low));
  node.value = seconds => { const x = values[Math.min(y.length - 1, Math.floor(seconds / step))]; return x == null ? "" : `${title} ${number(x)} ${unit}`; };
  node.draw = () => {
    const color = getComputedStyle(node).getPropertyValue("--" + name).trim(), lane = node.lastChild;
    new uPlot({ width: lane.clientWidth, height: 52, padding: [2, 0, 0, 0], legend: { show: false }, cursor: { show: false },
      axes: [{ show: false }, { show: false }], scales: { x: { time: false, range: [0, v.seconds] }, y: { range: [low, high > low ? high : low + 1] } },
      series: [{}, { stroke: color, fill: color + "33", fillTo: low, width: 1.5, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }] },
    [values.map((_, i) => Math.min(i * step, v.seconds)), values], lane);
  };
  return node;
}
function facts(v, d) {
  const known = [["key", v.key], ["labels", v.labels.join(", ")], ["frames", v.frames && number(v.frames)], ["duration", v.seconds && `${v.seconds} s`],
    ["picture", v.width && `${v.width}×${v.height}`], ["average rate", v.fps && `${v.fps} fps`], ...texts(DATA.facts, d.facts || []),
    ...(d.files || []).map(([file, bytes]) => [texts(DATA.facts, [file])[0][1], size(bytes)]), ...(d.columns || [])];
  return known.filter(([, text]) => text).map(([name, text]) => el("div", {}, el("dt", {}, el("bdi", { textContent: name })), el("dd", {}, el("bdi", { textContent: text }))));
}
function open(v) {
  const d = details(v), box = $("one"), time = el("span", { className: "time" }), cursor = el("i", { className: "cursor", hidden: true });
  const nodes = v.seconds ? tracks(v, d) : [], axis = el("div", { className: "axis" }, ...nodes, cursor), near = by => shown[shown.indexOf(v) + by];
  if (v.seconds) axis.append(track("", "", ...[0, 1, 2, 3, 4].map(k => el("span", { className: "second", textContent: number(v.seconds * k / 4) + (k < 4 ? "" : " s") }))));
  const go = (by, id, text, ariaLabel) => button(text, () => { history.replaceState(null, "", "#" + near(by).key); route(); }, { id, ariaLabel, disabled: !shown.includes(v) || !near(by) });
  const body = el("div", { className: "body" }, ...(d.captions || [v.caption]).filter(Boolean).map(text => el("p", {}, el("bdi", { textContent: text }))),
    ...(d.problems || []).map(text => el("p", { className: "note bad", textContent: text })), time, axis, el("dl", { className: "all" }, ...facts(v, d)));
  const command = `${DATA.command} ${v.key}`;
  if (DATA.command) body.append(el("p", { className: "command" }, el("code", { textContent: command }), button("Copy", e => copy(command, e.target))));
  box.replaceChildren(el("header", {}, el("h2", { id: "one-name" }, el("bdi", { textContent: v.path })), go(-1, "before", "‹", "Previous video"),
    go(1, "after", "›", "Next video"), button("✕", () => box.close(), { ariaLabel: "Close" })), body);
  if (!box.open) box.showModal();
  nodes.filter(node => node.draw).forEach(node => node.draw());
  axis.onpointermove = e => {
    const lane = axis.querySelector(".lane").getBoundingClientRect(), seconds = (e.clientX - lane.left) / lane.width * v.seconds;
    cursor.hidden = !(seconds >= 0 && seconds <= v.seconds);
    cursor.style.left = e.clientX - axis.getBoundingClientRect().left + "px";
    time.textContent = cursor.hidden ? "" : [number(seconds) + " s", ...nodes.map(node => node.value ? node.value(seconds) : "")].filter(Boolean).join(" · ");
  };
  axis.onpointerleave = () => { cursor.hidden = true; time.textContent = ""; };
}
const current = () => BY_KEY.get(location.hash.slice(1));
const route = () => current() ? open(current()) : $("one").close();
// Histograms
function histogram(h) {
  const box = el("div", { className: "hist panel", tabIndex: 0, role: "group" }, el("h3", { textContent: h.title }), el("small", { textContent: h.field === "bytes" ? "" : h.unit }));
  $("hists").append(box);
  const style = getComputedStyle(box), n = h.counts.length, end = Math.min(n, DATA.num_bins), old = state.ranges.get(h.field);
  const edge = i => h.field === "bytes" ? size(h.edges[i]) : number(h.edges[i], h.edges[end] - h.edges[0] < 20 ? 2 : 0);
  if (end < n) box.append(el("small", { className: "beyond", textContent: `${number(h.counts[end])} beyond ${edge(end)}` }));
  const axis = { stroke: style.getPropertyValue("--dim").trim(), grid: { show: false }, ticks: { show: false }, font: "11px system-ui, sans-serif", gap: 3 };
  box.ariaLabel = `${h.title}, ${edge(0)} to ${edge(n)} ${h.unit}. The arrow keys choose a range, Delete removes it.`;
  let [from, to] = old ? old.bins : [0, 0];
  const plot = new uPlot({ width: box.clientWidth - 26, height: 112, padding: [8, 30, 0, 0], legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
    scales: { x: { time: false, range: [0, n] }, y: { range: (u, low, high) => [0, Math.max(1, high)] } },
    axes: [{ ...axis, size: 22, splits: () => [0, end / 3, end * 2 / 3, end], values: (u, all) => all.map(edge) },
      { ...axis, size: 40, splits: (u, i, low, high) => [0, high], values: (u, all) => all.map(x => number(x)) }],
    series: [{}, { fill: style.getPropertyValue("--accent").trim(), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.9, 60], align: 1 }) }],
    hooks: { setSelect: [u => u.select.width > 2 && choose(Math.floor(u.posToVal(u.select.left, "x")), Math.ceil(u.posToVal(u.select.left + u.select.width, "x")))] } },
  [[...h.counts.keys(), n], [...h.counts, null]], box);
  const x = i => plot.valToPos(i, "x");
  const mark = () => plot.setSelect({ left: x(from), width: x(to) - x(from), top: 0, height: to > from ? plot.over.clientHeight : 0 }, false);
  function choose(first, last) {
    [from, to] = [Math.max(0, first), Math.min(n, last)];
    if (to > from) state.ranges.set(h.field, { field: h.field, bins: [from, to], clear: () => choose(0, 0), from: from ? h.edges[from] : -Infinity,
      to: to < n ? h.edges[to] : Infinity, text: `${h.title} ${edge(from)} to ${edge(to)}${h.field === "bytes" ? "" : " " + h.unit}` });
    else state.ranges.delete(h.field);
    mark();
    apply();
  }
  box.onkeydown = e => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key], first = to > from ? Math.min(n - 1, Math.max(0, from + by)) : by > 0 ? 0 : n - 1;
    if (by) e.preventDefault();
    if (by && e.shiftKey && to > from) choose(from, Math.max(from + 1, to + by));
    else if (by) choose(first, first + 1);
    else if (e.key === "Delete") choose(0, 0);
  };
  if (old) mark();
}
// Controls
async function copy(text, node) {
  const area = node.parentNode.appendChild(el("textarea", { value: text }));
  area.select();
  if (!document.execCommand("copy")) await navigator.clipboard.writeText(text);
  area.remove();
  $("said").textContent = "Copied to the clipboard.";
}
function redraw() {
  $("hists").replaceChildren();
  drawn = $("hists").clientWidth;
  DATA.histograms.forEach(histogram);
  if ($("one").open) route();
}
for (const id of ["search", "label", "trait", "sort"]) $(id).oninput = e => { state[id] = e.target.value; if (id === "sort") order(); apply(); };
for (const [id, by] of [["back", -1], ["forward", 1]]) $(id).onclick = () => { draw(state.page + by); $("videos").scrollIntoView(); };
$("tools").onsubmit = () => false;
$("copy").onclick = e => copy(shown.map(v => v.key).join("\n"), e.target);
$("save").onclick = () => {
  const lines = [`# ${shown.length} of ${VIDEOS.length} videos of a chordcache report`, ...shown.map(v => v.key), ""];
  el("a", { href: URL.createObjectURL(new Blob([lines.join("\n")], { type: "text/plain" })), download: "split.txt" }).click();
  $("said").textContent = `Saved ${number(shown.length)} keys as split.txt.`;
};
$("one").onclose = () => current() && history.replaceState(null, "", "#videos");
$("one").onclick = e => e.target === $("one") && $("one").close();
document.onkeydown = e => { if ($("one").open && /^Arrow(Left|Right)$/.test(e.key)) $(e.key === "ArrowLeft" ? "before" : "after").click(); };
window.onhashchange = route;
matchMedia("(prefers-color-scheme: dark)").onchange = redraw;
window.onresize = () => $("hists").clientWidth !== drawn && redraw();
for (const start of [order, apply, redraw, route]) start();
performance.mark("ready");
document.body.dataset.ready = "1";
