// The live view: what /v1/live tells once a second, drawn. Rates are differences between two events; nothing is loaded from elsewhere.
"use strict";

const HISTORY = 300; // seconds
const RECENT = 10; // seconds of the histogram
const MOST_DRAWN = 12; // nodes on a side of the picture
const GAP = 2.5; // seconds without an event, after which a line is not drawn on
const AGAIN = 2; // seconds until a stream that was refused is tried again

const byId = (id) => document.getElementById(id);
const state = { before: null, now: null, seconds: 1, traffic: [], latency: {}, counts: {}, paused: false };

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

function fill(id, rows) {
  const body = byId(id).querySelector("tbody");
  body.replaceChildren(
    ...rows.map((cells) => {
      const row = document.createElement("tr");
      for (const cell of cells) {
        const td = document.createElement("td");
        if (cell !== null && typeof cell === "object") {
          td.textContent = cell.text;
          td.className = cell.style ?? "";
          if (cell.title) td.title = cell.title;
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

// A path through samples: broken where there is no value, or none came for GAP seconds; and those that have no neighbour to be joined with.
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
  parts.push(element("text", { x: left, y: height - 2, class: "quiet" }, "5 min ago"));
  parts.push(element("text", { x: width - 6, y: height - 2, "text-anchor": "end", class: "quiet" }, unit));
  for (const s of series) {
    const { d, lone } = joined(s.samples, x, y);
    parts.push(element("path", { d: d || "M0 0", fill: "none", stroke: s.color, "stroke-width": 2 }));
    for (const v of lone) parts.push(element("circle", { cx: x(v.at).toFixed(1), cy: y(v.value).toFixed(1), r: 2.5, fill: s.color }));
  }
  svg.replaceChildren(...parts);
}

function drawHistogram(counts, edges) {
  const bottom = 18;
  const [svg, width, height] = sized("histogram", 120);
  const top = Math.max(1, ...counts);
  const step = (width - 52) / counts.length;
  const parts = counts.map((n, i) => {
    const size = (n / top) * (height - bottom - 6);
    return element("rect", { x: 46 + i * step, y: height - bottom - size, width: step - 1, height: size, fill: "var(--p50)" });
  });
  const each = 6 * Math.max(1, Math.ceil(64 / (6 * step))); // labels want room
  edges.forEach((edge, i) => {
    if (i % each === 0)
      parts.push(element("text", { x: 46 + (i + 1) * step, y: height - 4, "text-anchor": "middle", class: "quiet" }, micros(edge)));
  });
  svg.replaceChildren(...parts);
}

// Who has left in order is no part of the picture. Where there is no room for all: those that are lost, then metadata, come first.
function drawRack(nodes) {
  const drawn = nodes.filter((n) => n.kind !== "switch" && !n.hasLeft && (n.state !== "gone" || n.kind !== "client"));
  const servers = drawn.filter((n) => n.kind !== "client");
  const rank = (n) => (n.state !== "ready" ? 0 : n.kind === "metadata" ? 1 : 2);
  const chosen = new Set([...servers].sort((a, b) => rank(a) - rank(b)).slice(0, MOST_DRAWN));
  const upper = servers.filter((n) => chosen.has(n));
  const clients = drawn.filter((n) => n.kind === "client").sort((a, b) => b.in + b.out - a.in - a.out);
  const lower = clients.slice(0, MOST_DRAWN);
  const [svg, height, y] = [byId("rack"), 330, 165];
  // Room for every box; where the page is narrower it is scrolled, not made too small to be read.
  const least = 40 + 110 * Math.max(3, upper.length, lower.length);
  const width = Math.max(least, Math.min(1360, Math.round(svg.parentElement.clientWidth - 32)));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.minWidth = `${Math.round(least * 0.85)}px`;
  const parts = [];
  const boxed = state.now.box && state.now.box.counters;
  const place = (list, at, side) =>
    list.forEach((n, i) => {
      const x = ((i + 0.5) / list.length) * (width - 40) + 20;
      const color = n.state === "gone" ? "var(--gone)" : `var(--${n.kind})`;
      const load = n.in + n.out;
      const group = element("g", {});
      group.append(
        element("title", {}, n.shares.length === 0 ? n.name : `${n.name}: ${sharedWords(n)}`),
        element("line", {
          x1: x, x2: x, y1: at + side * 22, y2: y - side * 20, stroke: color, "stroke-width": 1 + Math.min(14, 2.2 * Math.log10(1 + load)),
          "stroke-dasharray": n.state === "ready" ? "none" : "5 5", opacity: 0.55,
        }),
        element("rect", { x: x - 52, y: at - 22, width: 104, height: 44, rx: 8, fill: "var(--card)", stroke: color, "stroke-width": 2 }),
        element("text", { x, y: at - 3, "text-anchor": "middle" }, shortened(n.name, 14)),
        element("text", { x, y: at + 14, "text-anchor": "middle", class: "quiet" }, n.state === "ready" ? `${atMost(n)}${words(load)}/s` : n.state),
      );
      parts.push(group);
    });
  place(upper, 40, 1);
  place(lower, 290, -1);
  parts.push(element("rect", { x: 20, y: y - 20, width: width - 40, height: 40, rx: 8, fill: "var(--card)", stroke: "var(--switch)", "stroke-width": 2 }));
  const said = boxed ? ` · box: ${state.now.box.box}, ${state.now.box.on ? "on" : "off"}` : "";
  const hidden = [[servers.length - upper.length, "memory nodes"], [clients.length - lower.length, "clients"]].filter(([n]) => n > 0);
  const more = hidden.length ? ` · and ${hidden.map(([n, what]) => `${n} more ${n === 1 ? what.slice(0, -1) : what}`).join(", ")}` : "";
  parts.push(element("text", { x: width / 2, y: y + 5, "text-anchor": "middle" }, `switch${said}${more}`));
  svg.replaceChildren(...parts);
}

// ------------------------------------------------------------------------------------------------------------ one event

// What a stage took it has answered itself, or put in order.
const dropsOf = (port) => Object.entries(port.drops).reduce((sum, [reason, n]) => (reason === "taken by stage" ? sum : sum + n), 0);

const portOf = (event, mac) => event?.switch?.ports?.find((p) => p.macs.includes(mac));

// A node has at most what its port has, which is all that is counted.
const atMost = (n) => (n.shares.length === 0 ? "" : "≤ ");
const sharedWords = (n) => `behind one port with ${n.shares.join(", ")}; counted together`;

function nodeRows(event, before) {
  return event.nodes.map((n) => {
    const port = portOf(event, n.mac);
    const among = port && port.macs.length > 1 && n.state !== "gone" ? event.nodes : [];
    const shares = among.filter((o) => o !== n && o.state !== "gone" && port.macs.includes(o.mac)).map((o) => o.name);
    const was = port && (before?.switch?.ports ?? []).find((p) => p.number === port.number && p.macs.includes(n.mac));
    const drops = port ? dropsOf(port) : 0;
    return {
      name: n.name, kind: n.kind, state: n.state, hasLeft: n.state === "gone" && n.left === true, shares, ip: n.ip, exports: n.regions.reduce((sum, r) => sum + r.length, 0), drops,
      in: port ? rate(port.rx_frames, was?.rx_frames) : 0, out: port ? rate(port.tx_frames, was?.tx_frames) : 0,
      inBytes: port ? rate(port.rx_bytes, was?.rx_bytes) : 0, outBytes: port ? rate(port.tx_bytes, was?.tx_bytes) : 0,
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
  const through = (event.switch.ports ?? []).reduce((sum, p) => {
    const was = before?.switch?.ports?.find((b) => b.number === p.number && b.name === p.name);
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
  byId("tiles").replaceChildren(
    ...tiles.map(([value, label]) => {
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
  const button = byId("steering");
  button.setAttribute("aria-checked", String(box.on));
  button.textContent = `${box.box.startsWith("clover") ? "Steering" : "Box"}: ${box.on ? "on" : "off"}`;
  byId("box-line").textContent =
    `${box.connections} connections, ${box.tracked_keys} keys and ${box.tracked_words} words tracked, ` +
    `${box.open_links} links and ${box.replaced_under_way} replaced operations under way, ${box.held} packets held`;
  const rows = Object.entries(box.counters)
    .map(([name, n]) => ({ name, all: n, rate: before?.counters ? rate(n, before.counters[name] ?? 0) : 0, meaning: box.meanings[name] ?? "" }))
    .sort((a, b) => b.rate - a.rate || b.all - a.all)
    .slice(0, 14);
  fill("verdicts", rows.map((r) => [r.name, words(r.rate), words(r.all), { text: r.meaning, style: "words" }]));
  byId("keys-section").hidden = box.top_keys.length === 0;
  fill("keys", box.top_keys.slice(0, 12).map((k) => [k.key, words(k.heat), words(k.links), words(k.writes_steered), words(k.reads_steered)]));
  byId("connections-section").hidden = box.top_connections.length === 0;
  const same = (a, b) => a.from === b.from && a.to === b.to && a.qpns[0] === b.qpns[0] && a.qpns[1] === b.qpns[1];
  fill("connections", box.top_connections.slice(0, 12).map((c) => {
    const was = before?.top_connections?.find((b) => same(b, c));
    return [c.from, { text: `${c.to} qp ${c.qpns[1]}`, style: "words" }, words(rate(c.requests, was?.requests)), words(rate(c.responses, was?.responses)),
      words(rate(c.changed, was?.changed)), words(c.delayed), words(c.dropped)];
  }));
}

function take(event) {
  const before = state.now;
  state.seconds = before ? Math.max(0.05, (event.at_ms - before.at_ms) / 1e3) : 1;
  state.before = before;
  state.now = event;
  const nodes = nodeRows(event, before);
  const through = takeTraffic(event, before);
  takeLatency(event, before);
  if (state.paused) return;
  drawTiles(event, through);
  drawRack(nodes);
  chart("traffic", [{ samples: state.traffic, color: "var(--in)" }], event.at_ms / 1e3, "now");
  drawLatency(event);
  drawBox(event.box, before?.box);
  fill("nodes", nodes.map((n) => {
    const counted = (text) => (n.shares.length === 0 ? text : { text: atMost(n) + text, title: sharedWords(n) });
    return [{ text: n.name, style: "name" }, { text: n.kind, style: "words" },
      { text: n.hasLeft ? "left" : n.state, style: n.state === "gone" && !n.hasLeft ? "words gone" : "words" },
      { text: n.ip, style: "words" }, n.exports ? bytes(n.exports) : "", counted(words(n.in)), counted(words(n.out)),
      counted((n.inBytes / 1e6).toFixed(2)), counted((n.outBytes / 1e6).toFixed(2)), counted(words(n.drops))];
  }));
  byId("shared").hidden = nodes.every((n) => n.shares.length === 0);
  const gone = nodes.filter((n) => n.state === "gone" && !n.hasLeft && n.kind !== "client").map((n) => n.name);
  if (event.nodes_error) return say(event.nodes_error, true);
  say(gone.length ? `${gone.join(", ")} ${gone.length === 1 ? "is" : "are"} gone` : `${nodes.filter((n) => !n.hasLeft).length} nodes`, gone.length !== 0);
}

function say(text, bad) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.className = bad ? "lost" : "";
}

// -------------------------------------------------------------------------------------------------------------- controls

async function toggleSteering() {
  const box = state.now?.box;
  if (!box || box.counters === undefined || !maySwitch()) return;
  const button = byId("steering");
  button.disabled = true;
  try {
    const answer = await fetch("/v1/box", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ on: !box.on }),
    });
    const said = await answer.json();
    byId("said").textContent = answer.ok ? "" : said.error;
    if (answer.ok) {
      state.now.box = said;
      drawBox(said, state.before?.box);
    }
  } catch (error) {
    byId("said").textContent = `the switch does not answer: ${error.message}`;
  }
  button.disabled = false;
  button.focus();
}

function togglePause() {
  state.paused = !state.paused;
  byId("pause").setAttribute("aria-pressed", String(state.paused));
  byId("pause").textContent = state.paused ? "Go on" : "Pause";
}

byId("steering").addEventListener("click", toggleSteering);
byId("pause").addEventListener("click", togglePause);
byId("operation").addEventListener("change", () => state.now && drawLatency(state.now));
document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.altKey || event.metaKey || event.target.tagName === "SELECT") return;
  if (event.key === "p") togglePause();
  if (event.key === "s") toggleSteering();
});

let events;

function listen() {
  events = new EventSource("/v1/live");
  events.onmessage = (message) => {
    const event = JSON.parse(message.data);
    if (event.switch?.error) return say(event.switch.error, true);
    take(event);
  };
  events.onerror = () => {
    if (events.readyState === EventSource.CLOSED) return tryAgain();
    say("the switch does not answer; trying again …", true); // which the browser does by itself
  };
}

// A browser that was refused the stream (503: too many readers) gives up, and does not say why: that is asked for.
async function tryAgain() {
  let why;
  const asking = new AbortController();
  try {
    const answer = await fetch("/v1/live", { signal: asking.signal });
    why = answer.ok ? "the switch was busy" : await answer.json().then((said) => said.error, () => `the switch answers with ${answer.status}`);
  } catch {
    why = "the switch does not answer";
  }
  asking.abort(); // of a stream that is granted now, its place
  say(`${why}; trying again …`, true);
  setTimeout(listen, AGAIN * 1e3);
}

listen();
