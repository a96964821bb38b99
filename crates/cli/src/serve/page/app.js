"use strict";
// The page: frames come over a WebSocket, everything else from the JSON API.

const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.search).get("token");
const query = token ? `?token=${encodeURIComponent(token)}` : "";

async function api(path, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = body === undefined ? { headers } : {
    method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  const response = await fetch(path, options);
  const text = await response.text();
  const value = text && response.headers.get("content-type")?.includes("json") ? JSON.parse(text) : text;
  if (!response.ok) throw new Error(value.error || value || response.statusText);
  return value;
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function time(ns) {
  if (!(ns >= 0)) return "–";
  if (ns < 1e3) return `${ns.toFixed(0)} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(1)} s`;
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
  return `${n < 10 && unit ? n.toFixed(1) : n.toFixed(0)} ${units[unit]}`;
}

// Blue is less pressure, red is more, obstacles are dark: by the byte of a cell.
const COLOURS = new Uint32Array(256);
for (let byte = 0; byte < 256; byte++) {
  const level = byte < 128 ? byte : byte - 256;
  const share = Math.min(1, Math.sqrt(Math.abs(level) / 127));
  const fade = (full) => Math.round(255 + (full - 255) * share);
  const [r, g, b] = level < 0 ? [fade(5), fade(80), fade(160)] : [fade(170), fade(20), fade(30)];
  COLOURS[byte] = (255 << 24) | (b << 16) | (g << 8) | r;
}
COLOURS[128] = (255 << 24) | (52 << 16) | (44 << 8) | 38;

// The same to look through: silence is not seen.
const VEILS = COLOURS.map((colour, byte) => {
  const level = byte < 128 ? byte : byte - 256;
  const alpha = byte === 128 ? 90 : Math.min(230, 25 * Math.sqrt(Math.abs(level)));
  return (colour & 0xffffff) | (alpha << 24);
});

function paint(canvas, cells, side, colours = COLOURS) {
  if (canvas.width !== side) canvas.width = canvas.height = side;
  const context = canvas.getContext("2d");
  const image = context.createImageData(side, side);
  const pixels = new Uint32Array(image.data.buffer);
  // y goes up.
  for (let y = 0; y < side; y++) {
    for (let x = 0; x < side; x++) pixels[(side - 1 - y) * side + x] = colours[cells[y * side + x]];
  }
  context.putImageData(image, 0, 0);
}

// ---- the connection -------------------------------------------------------------------------------------------------

let socket = null;
let delay = 250;
let status = null;
let seen = 0;

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}/live${query}`);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => {
    delay = 250;
    $("connection").textContent = "connected";
    $("connection").className = "";
    look();
    refresh();
  };
  socket.onmessage = (message) => {
    if (typeof message.data === "string") return say(JSON.parse(message.data).error || "");
    show(message.data);
  };
  socket.onclose = () => {
    $("connection").textContent = "The server does not answer. Is `millrace serve` still running? Trying again…";
    $("connection").className = "lost";
    setTimeout(connect, delay);
    delay = Math.min(delay * 2, 4000);
  };
}

const tell = (order) => {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(order));
};

function look() {
  tell({ view: $("deep").checked && !$("wave").hidden ? "3d" : "2d" });
}

function say(text) {
  $("notice").textContent = text;
}

let waiting = null;
function show(data) {
  // One frame at a time, and only the newest.
  const first = waiting === null;
  waiting = data;
  if (first) requestAnimationFrame(draw);
}

function draw() {
  const view = new DataView(waiting);
  const length = view.getUint32(0, true);
  status = JSON.parse(new TextDecoder().decode(new Uint8Array(waiting, 4, length)));
  const cells = new Uint8Array(waiting, 4 + length);
  waiting = null;
  seen++;
  const side = status.settings.size;
  if (!$("wave").hidden) {
    paint($("slice"), cells, side);
    const planes = Math.floor(cells.length / (side * side)) - 1;
    layers(planes);
    for (let n = 0; n < planes; n++) {
      paint($("layers").children[n], cells.subarray((n + 1) * side * side, (n + 2) * side * side), side, VEILS);
    }
  }
  figures();
}

function figures() {
  const { settings } = status;
  $("steps").textContent = status.steps.toLocaleString();
  $("fps").textContent = status.frames_per_second.toFixed(0);
  $("rate").textContent = `${(status.cells_per_second / 1e6).toFixed(1)} M`;
  $("generation").textContent = status.generation ? `${status.generation} (${status.recoveries} recovered)` : "no device";
  if (status.notice || $("notice").dataset.from === "status") {
    $("notice").dataset.from = status.notice ? "status" : "";
    say(status.notice);
  }
  const current = settings.engine === "reference" ? "reference" : `${settings.engine} on ${settings.device}`;
  const rows = Object.entries(status.timings);
  const body = $("timings");
  while (body.children.length > rows.length) body.lastChild.remove();
  rows.forEach(([name, timing], n) => {
    const row = body.children[n] || body.appendChild(element("tr"));
    const texts = [name, time(timing.inject), time(timing.round_trip), Math.floor(timing.per_frame).toLocaleString()];
    texts.forEach((text, i) => {
      const cell = row.children[i] || row.appendChild(element(i ? "td" : "th"));
      if (cell.textContent !== text) cell.textContent = text;
    });
    row.className = name === current ? "current" : "";
  });
  if (!document.activeElement?.closest("#controls")) reflect(settings);
}

setInterval(() => {
  $("seen").textContent = `${seen}`;
  seen = 0;
}, 1000);

// ---- the wave's controls --------------------------------------------------------------------------------------------

const SLIDERS = { speed: "speed", damping: "damping", wavelength: "wavelength", cut: "slice" };

/// Shows the settings as they are.
function reflect(settings) {
  $("cut").max = settings.size - 1;
  for (const [id, name] of Object.entries(SLIDERS)) {
    $(id).value = settings[name];
    outputs(id);
  }
  for (const id of ["engine", "scene", "device"]) {
    if ($(id).value !== settings[id]) $(id).value = settings[id];
  }
  $("size").value = settings.size;
  $("pause").textContent = settings.paused ? "Go on" : "Pause";
}

function outputs(id) {
  document.querySelector(`output[for=${id}]`).textContent = $(id).value;
}

function set(change) {
  tell({ do: "set", ...change });
}

for (const [id, name] of Object.entries(SLIDERS)) {
  $(id).addEventListener("input", () => {
    outputs(id);
    set({ [name]: Number($(id).value) });
  });
}
for (const id of ["engine", "scene", "device"]) $(id).addEventListener("change", () => set({ [id]: $(id).value }));
$("size").addEventListener("change", () => set({ size: Number($("size").value) }));
$("pause").addEventListener("click", () => {
  if (status) set({ paused: !status.settings.paused });
});
$("reset").addEventListener("click", () => tell({ do: "reset" }));
$("compare").addEventListener("click", () => tell({ do: "compare" }));
$("deep").addEventListener("change", look);
$("controls").addEventListener("submit", (event) => event.preventDefault());

const tool = () => document.querySelector("input[name=tool]:checked").value;

function cellAt(event) {
  const box = $("slice").getBoundingClientRect();
  const side = status.settings.size;
  const inside = (share) => Math.min(side - 1, Math.max(0, Math.floor(share * side)));
  return [inside((event.clientX - box.left) / box.width), side - 1 - inside((event.clientY - box.top) / box.height), status.settings.slice];
}

function act([x, y, z], how = tool()) {
  if (how === "inject") return tell({ do: "inject", cell: [x, y, z], amount: 20 * Math.max(status.scale, 0.05) });
  const side = status.settings.size;
  const thick = Math.max(1, Math.round(side / 32));
  const cells = [];
  for (let dx = 0; dx < thick; dx++) {
    for (let dy = 0; dy < thick; dy++) {
      for (let dz = -thick; dz <= thick; dz++) {
        const cell = [x + dx, y + dy, z + dz];
        if (cell.every((at) => at >= 0 && at < side)) cells.push(cell);
      }
    }
  }
  tell({ do: "draw", cells, solid: how === "draw" });
}

let drawing = null;
$("slice").addEventListener("pointerdown", (event) => {
  if (!status) return;
  $("slice").setPointerCapture(event.pointerId);
  drawing = cellAt(event);
  act(drawing);
});
$("slice").addEventListener("pointermove", (event) => {
  if (!drawing) return;
  const cell = cellAt(event);
  if (cell[0] !== drawing[0] || cell[1] !== drawing[1]) {
    drawing = cell;
    act(cell);
  }
});
for (const name of ["pointerup", "pointercancel"]) $("slice").addEventListener(name, () => { drawing = null; });

let place = null;
$("slice").addEventListener("keydown", (event) => {
  if (!status) return;
  const side = status.settings.size;
  place ||= [Math.floor(side / 2), Math.floor(side / 2)];
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const move = moves[event.key];
  if (move) place = place.map((at, i) => Math.min(side - 1, Math.max(0, at + move[i])));
  else if (event.key === "Enter" || event.key === " ") act([...place, status.settings.slice], "inject");
  else if (event.key.toLowerCase() === "o") act([...place, status.settings.slice], "draw");
  else return;
  event.preventDefault();
  const share = 100 / side;
  const style = { left: place[0] * share, top: (side - 1 - place[1]) * share, width: share, height: share };
  for (const [name, value] of Object.entries(style)) $("cursor").style.setProperty(name, `${value}%`);
  $("cursor").hidden = false;
});
$("slice").addEventListener("blur", () => { $("cursor").hidden = true; });

// ---- three dimensions -----------------------------------------------------------------------------------------------

let turn = [58, -30];
function layers(count) {
  const box = $("layers");
  if (box.children.length === count) return;
  box.replaceChildren();
  const depth = $("space").clientWidth * 0.45;
  for (let n = 0; n < count; n++) {
    const canvas = element("canvas");
    canvas.style.transform = `translateZ(${((n + 0.5) / count - 0.5) * depth}px)`;
    box.append(canvas);
  }
  orient();
}

function orient() {
  $("layers").style.transform = `rotateX(${turn[0]}deg) rotateZ(${turn[1]}deg)`;
}

$("space").addEventListener("pointermove", (event) => {
  if (!event.buttons) return;
  turn = [turn[0] - event.movementY * 0.4, turn[1] - event.movementX * 0.4];
  orient();
});
$("space").addEventListener("keydown", (event) => {
  const turns = { ArrowLeft: [0, 5], ArrowRight: [0, -5], ArrowUp: [5, 0], ArrowDown: [-5, 0] };
  if (!turns[event.key]) return;
  event.preventDefault();
  turn = turn.map((at, i) => at + turns[event.key][i]);
  orient();
});

// ---- devices --------------------------------------------------------------------------------------------------------

const history = new Map();

function card(title, pairs) {
  const made = element("div", undefined, { class: "card" });
  made.append(element("h3", title));
  const list = element("dl");
  for (const [name, value, kind] of pairs) {
    list.append(element("dt", name), element("dd", value, kind ? { class: kind } : {}));
  }
  made.append(list);
  return made;
}

function chart(values) {
  const canvas = element("canvas", undefined, { width: 240, height: 48, role: "img", "aria-label": "busy share over the last two minutes" });
  const context = canvas.getContext("2d");
  context.strokeStyle = getComputedStyle(document.body).getPropertyValue("--strong");
  context.lineWidth = 2;
  context.beginPath();
  values.forEach((value, n) => context.lineTo(n * 2, 46 - 44 * Math.min(1, value)));
  context.stroke();
  return canvas;
}

async function refreshDevices() {
  const { all, in_use: inUse, events } = await api("/api/devices");
  for (const select of [$("device"), $("kernel-device")]) {
    const usable = all.filter((device) => !device.unavailable);
    if (select.children.length !== usable.length) {
      select.replaceChildren(...usable.map((device) => element("option", device.id, { value: device.id })));
      if (status) reflect(status.settings);
    }
  }
  if ($("devices").hidden) return;
  $("all-devices").replaceChildren(...all.map((device) => {
    const row = element("tr");
    row.append(element("td", device.id), element("td", device.name), element("td", device.unavailable || "available"));
    return row;
  }));
  $("in-use").replaceChildren(...inUse.map((device) => {
    const key = `${device.id}/${device.generation}`;
    const values = [...(history.get(key) || []), device.busy].slice(-120);
    history.set(key, values);
    const made = card(device.id, [
      ["state", device.reason ? `${device.state}: ${device.reason}` : device.state, device.state],
      ["generation", device.generation],
      ["memory", `${bytes(device.memory)} of ${bytes(device.budget)}`],
      ["in flight", `${device.submissions} (${bytes(device.bytes_in_flight)})`],
      ["waiting", device.waiting],
      ["commands", device.commands.toLocaleString()],
      ["busy", `${(100 * device.busy).toFixed(0)}%`],
      ["temperature", device.temperature ? `${device.temperature} °C` : "not told"],
    ]);
    made.append(element("p", device.name), chart(values));
    return made;
  }));
  $("events").replaceChildren(...events.map((event) =>
    element("li", `${new Date(event.at * 1000).toLocaleTimeString()}  ${event.device}: ${event.what}`)));
}

$("destroy").addEventListener("click", () => tell({ do: "destroy" }));

// ---- kernels --------------------------------------------------------------------------------------------------------

const kernelCards = new Map();

async function refreshKernels() {
  if ($("kernels").hidden) return;
  const { kernels } = await api("/api/kernels");
  const ids = new Set(kernels.map((kernel) => kernel.id));
  for (const [id, made] of kernelCards) {
    if (!ids.has(id)) { made.remove(); kernelCards.delete(id); }
  }
  for (const kernel of kernels) {
    if (!kernelCards.has(kernel.id)) kernelCards.set(kernel.id, newKernel(kernel));
    const list = kernelCards.get(kernel.id).querySelector("dl");
    const pairs = [
      ["status", kernel.status], ["handled", kernel.handled.toLocaleString()], ["failed", kernel.failed],
      ["waiting", `${kernel.waiting[0]} urgent, ${kernel.waiting[1]} others`], ["rests", kernel.rests], ["lives by", kernel.residency],
    ];
    list.replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
  }
}

function newKernel(kernel) {
  const made = card(`${kernel.kind} ${kernel.id} on ${kernel.device}`, []);
  const answer = element("p", "", { role: "status", "aria-live": "polite" });
  const attempt = (work) => work().then(refreshKernels).catch((error) => { answer.textContent = error.message; });
  const buttons = element("div", undefined, { class: "buttons" });
  for (const command of ["activate", "pause", "drain", "terminate", "remove"]) {
    const button = element("button", command, { type: "button" });
    button.addEventListener("click", () => attempt(() => api(`/api/kernels/${kernel.id}/${command}`, {})));
    buttons.append(button);
  }
  buttons.style.flexWrap = "wrap";
  const form = element("form", undefined, { class: "row" });
  const input = (name) => {
    const label = element("label", name);
    const field = element("input", undefined, { type: "number", step: "any", value: "2", name, required: "" });
    field.style.width = "6em";
    label.append(field);
    form.append(label);
    return field;
  };
  const [a, b] = [input("a"), input("b")];
  form.append(element("button", "Ask"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(async () => {
      const reply = await api(`/api/kernels/${kernel.id}/ask`, { a: Number(a.value), b: Number(b.value) });
      answer.textContent = `${reply.answer.value} after ${time(reply.nanoseconds)}`;
    });
  });
  made.append(buttons, form, answer);
  $("kernel-list").append(made);
  return made;
}

$("launch").addEventListener("submit", (event) => {
  event.preventDefault();
  api("/api/kernels", { kind: $("kind").value, device: $("kernel-device").value })
    .then(() => { $("launch-notice").textContent = ""; return refreshKernels(); })
    .catch((error) => { $("launch-notice").textContent = error.message; });
});

// ---- benchmarks -----------------------------------------------------------------------------------------------------

let reported = null; // the run whose report was shown when it was done

async function refreshBench() {
  if ($("bench").hidden) return;
  const { groups, current, reports } = await api("/api/bench");
  if (!$("group").children.length) $("group").replaceChildren(...groups.map((group) => element("option", group)));
  const going = current?.going;
  let text = current ? `${current.group}: ${current.state}, ${current.seconds.toFixed(0)} s` : "";
  if (going) {
    text += `; group ${going.groups_done + 1} of ${going.groups}, ${going.group}: ${going.side}, turn ${going.done + 1} of ${going.total}`;
    if (going.left !== null) text += `, about ${Math.ceil(going.left)} s left`;
    $("run-progress").value = (going.groups_done + going.done / Math.max(going.total, 1)) / going.groups;
  }
  $("run").textContent = text;
  $("run-progress").hidden = !going;
  if ($("reports").children.length !== reports.length) {
    $("reports").replaceChildren(...reports.map((name) => {
      const item = element("li");
      const button = element("button", name, { type: "button" });
      button.addEventListener("click", () => report(name));
      const link = element("a", "full report", { href: `/report/${encodeURIComponent(name)}${query}`, target: "_blank" });
      item.append(button, " ", link);
      return item;
    }));
  }
  // The file may be there before the run says that it is done, or after.
  if (current?.state === "done" && reported !== current.name && reports.includes(current.name)) {
    reported = current.name;
    report(current.name);
  }
}

async function report(name) {
  const { machine, rows } = await api(`/api/bench/${encodeURIComponent(name)}`);
  const table = element("table");
  table.append(element("caption", `${name}: ${machine.cpu}, ${machine.cores} cores`));
  const head = element("tr");
  for (const title of ["group", "what", "p50", "p99", "target"]) head.append(element("th", title, { scope: "col" }));
  table.append(head);
  for (const row of rows) {
    const line = element("tr");
    const value = (n) => (n === null || n === undefined ? "–" : row.unit === "ns" ? time(n) : `${Number(n).toPrecision(4)} ${row.unit}`);
    line.append(element("td", row.group), element("td", row.id), element("td", value(row.p50)), element("td", value(row.p99)));
    const verdict = row.met === true ? "met" : row.met === false ? "missed" : "";
    line.append(element("td", row.target ? `${verdict} ${row.target}` : "", verdict ? { class: verdict } : {}));
    table.append(line);
  }
  $("report").replaceChildren(table);
}

$("start").addEventListener("submit", (event) => {
  event.preventDefault();
  api("/api/bench", { group: $("group").value }).then(refreshBench).catch((error) => { $("run").textContent = error.message; });
});

// ---- views ----------------------------------------------------------------------------------------------------------

const tabs = [...document.querySelectorAll("[role=tab]")];
function choose(tab) {
  for (const other of tabs) {
    other.setAttribute("aria-selected", String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = other !== tab;
  }
  look();
  refresh();
}
tabs.forEach((tab, n) => {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = tabs[(n + step + tabs.length) % tabs.length];
    next.focus();
    choose(next);
  });
});

function refresh() {
  for (const part of [refreshDevices, refreshKernels, refreshBench]) part().catch(() => {});
}
setInterval(refresh, 1000);
connect();
