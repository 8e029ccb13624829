// The live view: what /v1/live tells once a second, drawn. Rates are differences between two events;
// nothing is loaded from elsewhere.
"use strict";

const HISTORY = 300; // seconds
const RECENT = 10; // seconds of the histogram
const MOST_DRAWN = 12; // nodes on a side of the picture
const GAP = 2.5; // seconds without an event, after which a line is not drawn on
const AGAIN = 2; // seconds until a stream that was refused is tried again
const PATIENCE = 5; // seconds until the switch must have said why it refuses
const SILENCE = 5; // seconds without a word, after which that is said, and again every so many
const ANEW = 30; // seconds without a word, after which the stream is opened anew
const TOLD = 10; // seconds that a refusal is shown
const MOST_NAMED = 8; // nodes in a title

const KINDS = { memory: "memory node", metadata: "metadata server", client: "client" };

const byId = (id) => document.getElementById(id);
const state = {
  before: null, now: null, nodes: [], through: null, seconds: 1, traffic: [], latency: {}, counts: {}, paused: false,
  heard: 0, // when the switch has said something last, and
  opened: 0, // when it was asked to: of performance.now()
  broken: false, // the stream ended, and is tried again
  live: false, // what was heard last was how the rack is
  taken: null, // when that was
  shown: null, // and of when is what is drawn
};

// ---------------------------------------------------------------------------------------------------------- numbers

const words = (n) => {
  if (n >= 1e9) return (n / 1e9).toFixed(2) + " G";
  if (n >= 1e6) return (n / 1e6).toFixed(2) + " M";
  if (n >= 1e4) return (n / 1e3).toFixed(1) + " k";
  return n >= 100 || Number.isInteger(n) ? n.toFixed(0) : n.toFixed(1);
};
const bytes = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i + 1 < units.length; ++i) n /= 1024;
  return `${Number.isInteger(n) ? n : n.toFixed(1)} ${units[i]}`;
};
const micros = (seconds) => (seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(1)} ms` : `${(seconds * 1e6).toFixed(1)} us`);
const rate = (now, before) => Math.max(0, now - (before ?? now)) / state.seconds;

// The smallest time that `q` of the counts do not exceed, between the edges of its bucket.
function quantile(counts, edges, q) {
  const all = counts.reduce((a, b) => a + b, 0);
  if (all === 0) return null;
  let left = q * all;
  for (let i = 0; i < counts.length; ++i) {
    if (left <= counts[i] && counts[i] > 0) {
      const from = i === 0 ? 0 : edges[i - 1];
      const to = i < edges.length ? edges[i] : edges[edges.length - 1];
      return from + (to - from) * (left / counts[i]);
    }
    left -= counts[i];
  }
  return edges[edges.length - 1];
}

// Samples of the last HISTORY seconds. A clock that was set back begins anew.
const keep = (list, at, value) => {
  if (list.length > 0 && at < list.at(-1).at) list.length = 0;
  list.push({ at, value });
  while (list[0].at < at - HISTORY) list.shift();
};

// At most `most` letters. Names that differ at their end only stay different.
function shortened(name, most) {
  if (name.length <= most) return name;
  const head = Math.floor((most - 1) / 2);
  return name.slice(0, head) + "…" + name.slice(name.length - (most - 1 - head));
}

// Steps of 1, 2 or 5 times a power of ten, four or less of them up to `most`; and how many digits tell one from the next.
function axis(most) {
  if (most <= 0) return { step: 1, steps: 1, digits: 0 };
  const power = Math.floor(Math.log10(most / 4));
  const step = [1, 2, 5, 10].map((n) => n * 10 ** power).find((s) => s * 4 >= most * 0.999999);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return { step, steps: Math.max(1, Math.ceil(most / step - 1e-6)), digits };
}

// ------------------------------------------------------------------------------------------------------------- drawing

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Makes `wanted` of what `parent` holds, in place: what a reader has selected, points at or listens to is not taken away every second.
function show(parent, wanted) {
  wanted.forEach((part, i) => {
    const there = parent.childNodes[i];
    if (there === undefined) parent.append(part);
    else if (there.nodeName !== part.nodeName) there.replaceWith(part);
    else become(there, part);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function become(there, wanted) {
  if (there.nodeType === Node.TEXT_NODE) {
    if (there.data !== wanted.data) there.data = wanted.data;
    return;
  }
  for (const { name } of [...there.attributes]) if (!wanted.hasAttribute(name)) there.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (there.getAttribute(name) !== value) there.setAttribute(name, value);
  show(there, [...wanted.childNodes]);
}

// A row is a list of cells, which may have a `title`.
function fill(id, rows) {
  show(
    byId(id).querySelector("tbody"),
    rows.map((cells) => {
      const row = document.createElement("tr");
      if (cells.title) row.title = cells.title;
      for (const cell of cells) {
        const td = document.createElement("td");
        if (cell !== null && typeof cell === "object") {
          td.textContent = cell.text;
          td.className = cell.style ?? "";
        } else {
          td.textContent = cell;
        }
        row.append(td);
      }
      return row;
    }),
  );
}

// As wide as it is on the page, so that its letters keep their size.
function sized(id, height) {
  const svg = byId(id);
  const width = Math.max(280, Math.round(svg.clientWidth) || 640);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return [svg, width, height];
}

// A path through samples: broken where there is no value, or none came for GAP seconds;
// and those that have no neighbour to be joined with.
function joined(samples, x, y) {
  let d = "";
  const lone = [];
  let run = 0;
  samples.forEach((s, i) => {
    if (s.value === null) return (run = 0);
    const next = samples[i + 1];
    if (run > 0 && s.at - samples[i - 1].at > GAP) run = 0;
    const ends = next === undefined || next.value === null || next.at - s.at > GAP;
    if (run === 0 && ends) lone.push(s);
    else d += `${run === 0 ? "M" : "L"}${x(s.at).toFixed(1)} ${y(s.value).toFixed(1)}`;
    ++run;
  });
  return { d, lone };
}

// Lines over the last HISTORY seconds, until `now`. The scale begins at 0.
function chart(id, series, now, unit) {
  const [left, bottom] = [46, 18];
  const [svg, width, height] = sized(id, 190);
  const { step, steps, digits } = axis(Math.max(0, ...series.flatMap((s) => s.samples.map((v) => v.value ?? 0))));
  const x = (at) => left + (1 - (now - at) / HISTORY) * (width - left - 6);
  const y = (v) => height - bottom - (v / (step * steps)) * (height - bottom - 8);
  const parts = [];
  for (let i = 0; i <= steps; ++i) {
    const at = y(step * i);
    parts.push(element("line", { x1: left, x2: width - 6, y1: at, y2: at, stroke: "var(--line)" }));
    const label = step * i >= 1e4 ? words(step * i) : (step * i).toFixed(i === 0 ? 0 : digits);
    parts.push(element("text", { x: left - 6, y: at + 4, "text-anchor": "end", class: "quiet" }, label));
  }
  parts.push(element("text", { x: left, y: height - 4, class: "quiet" }, "5 min ago"));
  parts.push(element("text", { x: width - 6, y: height - 4, "text-anchor": "end", class: "quiet" }, unit));
  for (const s of series) {
    const { d, lone } = joined(s.samples, x, y);
    parts.push(element("path", { d: d || "M0 0", fill: "none", stroke: s.color, "stroke-width": 2 }));
    for (const v of lone) {
      const [cx, cy] = [x(v.at).toFixed(1), y(v.value).toFixed(1)];
      parts.push(element("circle", { cx, cy, r: 2.5, fill: s.color }));
    }
  }
  show(svg, parts);
}

function drawHistogram(counts, edges) {
  const bottom = 18;
  const [svg, width, height] = sized("histogram", 120);
  const most = Math.max(...counts);
  const top = Math.max(1, most);
  const step = (width - 52) / counts.length;
  const parts = counts.map((n, i) => {
    const size = (n / top) * (height - bottom - 6);
    return element("rect", { x: 46 + i * step, y: height - bottom - size, width: step - 1, height: size, fill: "var(--p50)" });
  });
  if (most > 0) parts.push(element("text", { x: 40, y: 14, "text-anchor": "end", class: "quiet" }, words(most)));
  const each = 6 * Math.max(1, Math.ceil(64 / (6 * step))); // labels want room
  edges.forEach((edge, i) => {
    if (i % each === 0)
      parts.push(element("text", { x: 46 + (i + 1) * step, y: height - 4, "text-anchor": "middle", class: "quiet" }, micros(edge)));
  });
  show(svg, parts);
}

// Those of the servers that there is room for: at most half of it is for the lost, while those that live want it.
// Of these, who joins comes first, then metadata servers.
function chosenOf(servers) {
  const lost = servers.filter((n) => n.state === "gone");
  const rank = (n) => (n.state !== "ready" ? 0 : n.kind === "metadata" ? 1 : 2);
  const living = servers.filter((n) => n.state !== "gone").sort((a, b) => rank(a) - rank(b));
  const shown = lost.slice(0, Math.max(MOST_DRAWN / 2, MOST_DRAWN - living.length));
  const chosen = new Set([...shown, ...living.slice(0, MOST_DRAWN - shown.length)]);
  return servers.filter((n) => chosen.has(n));
}

// "and 3 more memory nodes, 1 more client": those that are not drawn.
function hiddenWords(all, drawn) {
  const parts = Object.entries(KINDS).map(([kind, what]) => {
    const count = all.filter((n) => n.kind === kind).length - drawn.filter((n) => n.kind === kind).length;
    return count === 0 ? "" : `${count} more ${what}${count === 1 ? "" : "s"}`;
  });
  const hidden = parts.filter((part) => part !== "");
  return hidden.length === 0 ? "" : ` · and ${hidden.join(", ")}`;
}

// Who has left in order is no part of the picture.
function drawRack(nodes) {
  const drawn = nodes.filter((n) => n.kind !== "switch" && !n.hasLeft && (n.state !== "gone" || n.kind !== "client"));
  const upper = chosenOf(drawn.filter((n) => n.kind !== "client"));
  const clients = drawn.filter((n) => n.kind === "client");
  const busiest = new Set([...clients].sort((a, b) => b.in + b.out - a.in - a.out).slice(0, MOST_DRAWN));
  const lower = clients.filter((n) => busiest.has(n)); // as the directory has them: each stays at its place
  const [svg, height, y] = [byId("rack"), 330, 165];
  // Room for every box; where the page is narrower it is scrolled, not made too small to be read.
  const least = 40 + 110 * Math.max(3, upper.length, lower.length);
  const width = Math.max(least, Math.min(1360, Math.round(svg.parentElement.clientWidth - 32)));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.minWidth = `${Math.round(least * 0.85)}px`;
  const parts = [];
  const boxed = state.now.box && state.now.box.counters;
  const box = { fill: "var(--card)", "stroke-width": 2 };
  const rateWords = (n) => `${atMost(n)}${words(n.in + n.out)}/s`;
  const place = (list, at, side) =>
    list.forEach((n, i) => {
      const x = ((i + 0.5) / list.length) * (width - 40) + 20;
      const color = n.state === "gone" ? "var(--gone)" : `var(--${n.kind})`;
      const load = n.in + n.out;
      const group = element("g", {});
      group.append(
        element("title", {}, `${n.name}, ${KINDS[n.kind]}${n.others === 0 ? "" : `, ${sharedWords(n)}`}`),
        element("line", {
          x1: x, x2: x, y1: at + side * 22, y2: y - side * 20,
          stroke: color, "stroke-width": 1 + Math.min(14, 2.2 * Math.log10(1 + load)),
          "stroke-dasharray": n.state === "ready" ? "none" : "5 5", opacity: 0.55,
        }),
        element("rect", { x: x - 52, y: at - 22, width: 104, height: 44, ...box, rx: n.kind === "metadata" ? 22 : 8, stroke: color }),
        element("text", { x, y: at - 3, "text-anchor": "middle" }, shortened(n.name, 14)),
        element("text", { x, y: at + 14, "text-anchor": "middle", class: "quiet" }, n.state === "ready" ? rateWords(n) : n.state),
      );
      parts.push(group);
    });
  place(upper, 40, 1);
  place(lower, 290, -1);
  parts.push(element("rect", { x: 20, y: y - 20, width: width - 40, height: 40, ...box, rx: 8, stroke: "var(--switch)" }));
  const said = boxed ? ` · box: ${state.now.box.box}, ${state.now.box.on ? "on" : "off"}` : "";
  const more = hiddenWords(drawn, [...upper, ...lower]);
  parts.push(element("text", { x: width / 2, y: y + 5, "text-anchor": "middle" }, `switch${said}${more}`));
  show(svg, parts);
}

// ------------------------------------------------------------------------------------------------------------ one event

// What a stage took it has answered itself, or put in order.
const dropsOf = (port) => Object.entries(port.drops).reduce((sum, [reason, n]) => (reason === "taken by stage" ? sum : sum + n), 0);

// A node has at most what its port has, which is all that is counted.
const atMost = (n) => (n.others === 0 ? "" : "≤ ");

// Some of those who share a node's port by name; of the rest, strangers among them, how many they are.
function sharedWords(n) {
  const named = n.neighbours.filter((name) => name !== n.name).slice(0, MOST_NAMED);
  const rest = n.others - named.length;
  const more = named.length === 0 ? `${rest} other ${rest === 1 ? "address" : "addresses"}` : `${rest} more`;
  const all = rest > 0 ? [named.join(", "), more].filter((part) => part !== "").join(" and ") : named.join(", ");
  return `behind one port with ${all}; counted together`;
}

// A program on a host's NIC (`sluice run --host`) has the host's address, but for its second byte.
const hostOf = (mac) => mac.replace(/^(..):..:/, "$1:00:");

// {address: its port, how many share that (but for nodes that are gone), and names of some of these}
function placesOf(event) {
  const byMac = new Map(event.nodes.map((n) => [n.mac, n]));
  const places = new Map();
  for (const port of event.switch?.ports ?? []) {
    const macs = [...new Set(port.macs.map((mac) => (byMac.has(hostOf(mac)) ? hostOf(mac) : mac)))];
    const living = macs.filter((mac) => byMac.get(mac)?.state !== "gone");
    // One more than are named: a node is not its own neighbour.
    const names = living.filter((mac) => byMac.has(mac)).slice(0, MOST_NAMED + 1).map((mac) => byMac.get(mac).name);
    for (const mac of macs) places.set(mac, { port, sharers: living.length, names });
  }
  return places;
}

function nodeRows(event, before) {
  const places = placesOf(event);
  const were = before ? placesOf(before) : new Map();
  return event.nodes.map((n) => {
    const { port, sharers, names } = places.get(n.mac) ?? { sharers: 0, names: [] };
    const wasAt = were.get(n.mac)?.port;
    const was = wasAt?.number === port?.number ? wasAt : undefined;
    const counted = (name) => (port ? rate(port[name], was?.[name]) : 0);
    return {
      name: n.name, kind: n.kind, state: n.state, hasLeft: n.state === "gone" && n.left === true, ip: n.ip,
      exports: n.regions.reduce((sum, r) => sum + r.length, 0),
      others: n.state === "gone" ? 0 : Math.max(0, sharers - 1), neighbours: names,
      drops: port ? dropsOf(port) : 0,
      in: counted("rx_frames"), out: counted("tx_frames"), inBytes: counted("rx_bytes"), outBytes: counted("tx_bytes"),
    };
  });
}

function takeLatency(event, before) {
  const all = event.switch.latency ?? {};
  for (const [name, now] of Object.entries(all)) {
    const was = before?.switch?.latency?.[name]?.counts;
    const fresh = now.counts.map((n, i) => Math.max(0, n - (was?.[i] ?? n)));
    const edges = event.switch.latency_edges_s;
    const kept = (state.latency[name] ??= { p50: [], p99: [] });
    const p50 = quantile(fresh, edges, 0.5);
    const p99 = quantile(fresh, edges, 0.99);
    const at = event.at_ms / 1e3;
    keep(kept.p50, at, p50 === null ? null : p50 * 1e6);
    keep(kept.p99, at, p99 === null ? null : p99 * 1e6);
    const recent = (state.counts[name] ??= []);
    recent.push(fresh);
    if (recent.length > RECENT) recent.shift();
  }
}

function drawLatency(event) {
  const name = byId("operation").value;
  const kept = state.latency[name] ?? { p50: [], p99: [] };
  const series = [{ samples: kept.p99, color: "var(--p99)" }, { samples: kept.p50, color: "var(--p50)" }];
  chart("latency", series, event.at_ms / 1e3, "us, now");
  const edges = event.switch.latency_edges_s ?? [];
  const sums = new Array(edges.length + 1).fill(0);
  for (const counts of state.counts[name] ?? []) counts.forEach((n, i) => (sums[i] += n));
  drawHistogram(sums, edges);
}

function takeTraffic(event, before) {
  const were = new Map((before?.switch?.ports ?? []).map((p) => [p.number, p]));
  const through = (event.switch.ports ?? []).reduce((sum, p) => {
    const wasAt = were.get(p.number);
    const was = wasAt?.name === p.name ? wasAt : undefined;
    return { frames: sum.frames + rate(p.rx_frames, was?.rx_frames), bytes: sum.bytes + rate(p.rx_bytes, was?.rx_bytes) };
  }, { frames: 0, bytes: 0 });
  keep(state.traffic, event.at_ms / 1e3, before ? through.frames / 1e3 : null);
  return through;
}

function drawTiles(event, through) {
  const last = (name, which) => state.latency[name]?.[which].at(-1)?.value;
  const shown = (v) => (v === null || v === undefined ? "–" : `${v.toFixed(1)} us`);
  const tiles = [[words(through.frames), "frames a second"], [words(through.bytes / 1e6), "MB a second"]];
  for (const [name, label] of [["read", "READ"], ["write", "WRITE"], ["atomic", "atomics"]])
    tiles.push([`${shown(last(name, "p50"))} / ${shown(last(name, "p99"))}`, `${label}: p50 / p99`]);
  const there = event.nodes.filter((n) => !(n.state === "gone" && n.left));
  tiles.push([`${there.filter((n) => n.state === "ready").length} of ${there.length}`, "nodes ready"]);
  show(
    byId("tiles"),
    tiles.map(([value, label]) => {
      const tile = document.createElement("div");
      tile.className = "tile";
      const b = document.createElement("b");
      b.textContent = value;
      const span = document.createElement("span");
      span.textContent = label;
      tile.append(b, span);
      return tile;
    }),
  );
}

// A box that only watches has no rules; and where the rack has tenants, a page has no token to show.
const maySwitch = () => state.now?.may_change === true && Object.keys(state.now.box?.rules ?? {}).length > 0;

function drawBox(box, before) {
  const there = box !== null && box.counters !== undefined;
  byId("box-section").hidden = !there;
  byId("steering").hidden = byId("steering-key").hidden = !maySwitch();
  if (!there) return;
  byId("untold").hidden = state.now.may_change !== false;
  const button = byId("steering");
  button.setAttribute("aria-checked", String(box.on));
  button.textContent = `${box.box.startsWith("clover") ? "Steering" : "Box"}: ${box.on ? "on" : "off"}`;
  byId("box-line").textContent =
    `${box.connections} connections, ${box.tracked_keys} keys and ${box.tracked_words} words tracked, ` +
    `${box.open_links} links and ${box.replaced_under_way} replaced operations under way, ${box.held} packets held`;
  const rows = Object.entries(box.counters)
    .map(([name, n]) => {
      const aSecond = before?.counters ? rate(n, before.counters[name] ?? 0) : 0;
      return { name, all: n, rate: aSecond, meaning: box.meanings[name] ?? "" };
    })
    .sort((a, b) => b.rate - a.rate || b.all - a.all)
    .slice(0, 14);
  fill("verdicts", rows.map((r) => [r.name, words(r.rate), words(r.all), { text: r.meaning, style: "words" }]));
  byId("keys-section").hidden = box.top_keys.length === 0;
  fill("keys", box.top_keys.slice(0, 12).map((k) =>
    [k.key, words(k.heat), words(k.links), words(k.writes_steered), words(k.reads_steered)]));
  byId("connections-section").hidden = box.top_connections.length === 0;
  const same = (a, b) => a.from === b.from && a.to === b.to && a.qpns[0] === b.qpns[0] && a.qpns[1] === b.qpns[1];
  fill("connections", box.top_connections.slice(0, 12).map((c) => {
    const was = before?.top_connections?.find((b) => same(b, c));
    const rates = ["requests", "responses", "changed"].map((name) => words(rate(c[name], was?.[name])));
    return [c.from, { text: `${c.to} qp ${c.qpns[1]}`, style: "words" }, ...rates, words(c.delayed), words(c.dropped)];
  }));
}

function take(event) {
  // A clock that was set back tells nothing of how long it was.
  const before = state.now && event.at_ms > state.now.at_ms ? state.now : null;
  state.seconds = before ? Math.max(0.05, (event.at_ms - before.at_ms) / 1e3) : 1;
  const nodes = nodeRows(event, before);
  const through = takeTraffic(event, before);
  takeLatency(event, before);
  Object.assign(state, { before, now: event, nodes, through, live: true, taken: new Date() });
  sayHowItIs(event, state.nodes);
  draw();
}

// What was taken last. For nobody who looks it is not drawn: a page may be open for days.
function draw() {
  const { now: event, before, nodes } = state;
  if (event === null || state.paused || document.hidden) return;
  state.shown = state.taken;
  tellAge();
  drawTiles(event, state.through);
  drawRack(nodes);
  chart("traffic", [{ samples: state.traffic, color: "var(--in)" }], event.at_ms / 1e3, "now");
  drawLatency(event);
  drawBox(event.box, before?.box);
  fill("nodes", nodes.map((n) => {
    const counted = [words(n.in), words(n.out), (n.inBytes / 1e6).toFixed(2), (n.outBytes / 1e6).toFixed(2), words(n.drops)];
    const cells = [{ text: n.name, style: "name" }, { text: n.kind, style: "words" },
      { text: n.hasLeft ? "left" : n.state, style: n.state === "gone" && !n.hasLeft ? "words gone" : "words" },
      { text: n.ip, style: "words" }, n.exports ? bytes(n.exports) : "", ...counted.map((text) => atMost(n) + text)];
    if (n.others > 0) cells.title = sharedWords(n);
    return cells;
  }));
  byId("shared").hidden = nodes.every((n) => n.others === 0);
}

// ------------------------------------------------------------------------------------------------------------- the status

function sayHowItIs(event, nodes) {
  if (event.nodes_error) return say(event.nodes_error, true);
  const gone = nodes.filter((n) => n.state === "gone" && !n.hasLeft && n.kind !== "client").map((n) => n.name);
  const count = nodes.filter((n) => !n.hasLeft).length;
  if (gone.length === 0) return say(`${count} ${count === 1 ? "node" : "nodes"}`, false);
  const rest = gone.length - MOST_NAMED;
  const names = gone.slice(0, MOST_NAMED).join(", ") + (rest > 0 ? ` and ${rest} more` : "");
  say(`${names} ${gone.length === 1 ? "is" : "are"} gone`, true);
}

function say(text, bad) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.className = bad ? "lost" : "";
  document.title = `${bad ? `! ${text} – ` : ""}Sluice ${location.host}`; // is seen where the page is not
}

// The same of what keeps the page from knowing how the rack is.
function lose(text) {
  state.live = false;
  say(text, true);
  tellAge();
}

// What is not of now does not look as if it were.
function tellAge() {
  const old = state.shown !== null && (state.paused || !state.live);
  document.querySelector("main").classList.toggle("old", old);
  byId("age").textContent = old ? `shown: as of ${state.shown.toLocaleString()}` : "";
}

// What was refused a while ago is no news.
function complain(text) {
  const said = byId("said");
  said.textContent = text;
  clearTimeout(said.ends);
  said.ends = setTimeout(() => (said.textContent = ""), TOLD * 1e3);
}

// -------------------------------------------------------------------------------------------------------------- controls

async function toggleSteering() {
  const box = state.now?.box;
  const button = byId("steering");
  if (button.disabled || !box || box.counters === undefined || !maySwitch()) return;
  const hadFocus = document.activeElement === button;
  button.disabled = true;
  complain("");
  try {
    const answer = await fetch("/v1/box", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ on: !box.on }),
      redirect: "manual", signal: AbortSignal.timeout(PATIENCE * 1e3),
    });
    if (answer.ok && typeOf(answer) === "application/json") {
      state.now.box = await answer.json();
      drawBox(state.now.box, state.before?.box);
    } else {
      complain(await reasonOf(answer));
    }
  } catch (error) {
    const late = error.name === "TimeoutError";
    complain(late ? `no answer within ${PATIENCE} s; it may still be done` : `the switch does not answer: ${error.message}`);
  }
  button.disabled = false;
  if (hadFocus) button.focus(); // which went away with the button
}

function togglePause() {
  state.paused = !state.paused;
  byId("pause").setAttribute("aria-pressed", String(state.paused));
  tellAge();
  draw();
}

byId("steering").addEventListener("click", toggleSteering);
byId("pause").addEventListener("click", togglePause);
byId("operation").addEventListener("change", () => state.now && drawLatency(state.now));
document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.altKey || event.metaKey || event.target.tagName === "SELECT") return;
  if (event.key === "p") togglePause();
  if (event.key === "s") toggleSteering();
});

document.addEventListener("visibilitychange", draw);

let events;

function heard() {
  state.heard = performance.now();
  state.broken = false;
}

// The switch hangs, or what is between. Said in steps, for those to whom it is read aloud. Where the other machine, or the way to it,
// is gone without a word, the stream never ends: it is opened anew.
function noteSilence() {
  const now = performance.now();
  const silent = (now - state.heard) / 1e3;
  if (silent < SILENCE || events.readyState === EventSource.CLOSED) return;
  // Of a stream that broke it is said already that it is tried again.
  if (!state.broken) lose(`nothing heard from the switch for ${Math.floor(silent / SILENCE) * SILENCE} s`);
  if (Math.min(silent, (now - state.opened) / 1e3) < ANEW) return;
  events.close();
  listen();
}

function listen() {
  state.opened = performance.now();
  events = new EventSource("/v1/live");
  events.onopen = heard;
  events.onmessage = (message) => {
    heard();
    try {
      const event = JSON.parse(message.data);
      if (event.switch?.error) return lose(event.switch.error);
      take(event);
    } catch (error) {
      console.error(error);
      lose(`this page does not understand the switch, which may be newer: load it again (${error.message})`);
    }
  };
  events.onerror = () => {
    state.broken = true;
    if (events.readyState === EventSource.CLOSED) return tryAgain();
    lose("the switch does not answer; trying again …"); // which the browser does by itself
  };
}

const typeOf = (answer) => (answer.headers.get("Content-Type") ?? "without a type").split(";")[0];

// What an answer says that is no stream, or why there was none. It may be that of something between here and the switch.
async function reasonOf(answer) {
  if (answer.type === "opaqueredirect") return "not the switch answers: the page is sent elsewhere; is there a login?";
  const type = typeOf(answer);
  if (answer.ok && type === "text/event-stream") return "the switch was busy";
  const said = type === "application/json" ? await answer.json().catch(() => null) : null;
  if (typeof said?.error === "string") return said.error;
  if (!answer.ok) return `the answer is an error (${answer.status})`;
  return `not the switch answers, but something else (${type}); is there a login?`;
}

// A browser that was refused the stream (503: too many readers) gives up, and does not say why: that is asked for.
async function tryAgain() {
  let why;
  const asking = new AbortController();
  const limit = setTimeout(() => asking.abort(), PATIENCE * 1e3);
  try {
    why = await reasonOf(await fetch("/v1/live", { signal: asking.signal, redirect: "manual" }));
  } catch {
    why = "the switch does not answer";
  }
  clearTimeout(limit);
  asking.abort(); // of a stream that is granted now, its place
  lose(`${why}; trying again …`);
  setTimeout(listen, AGAIN * 1e3);
}

listen();
setInterval(noteSilence, 1000);
