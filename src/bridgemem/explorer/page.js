// The page: one query (who, whom, what, whether; step, horizon, assumed events), its answers, and why.

import { AHEAD, request, showAhead, showChanges, showReasons } from "./ahead.js";
import { SearchBox, ask, byId, label, make, plain, signed, table, whole } from "./ask.js";
import { Assumed } from "./assume.js";
import { backboneChart, evidenceChart, timelineChart } from "./charts.js";
import { showOutlook } from "./outlook.js";
import { percent } from "./probability.js";
import { showQuality } from "./quality.js";
import { showRecord } from "./record.js";

const MORE = 10, MOST = 100;
const GROUP_WORDS = {
  backbone: "how sure the backbone is", transitions: "what such events lead to", pair: "how often and how lately they interacted",
  recurrence: "the very same before", candidate: "the candidate’s activity", actor: "the actor’s activity",
  common_neighbours: "common neighbours", relation: "the relation’s frequency",
};
const TABS = ["ask", "outlook", "record", "quality"];
const KIND_WORDS = {
  who: "with whom an event of this relation happens", whom: "whom the actor deals with, under any relation",
  what: "what happens between two parties", whether: "whether and when it happens",
};
const query = { kind: "who", actor: "", relation: "", inverse: false, other: "", horizon: 1, step: 0 };
let overview, candidates = [], chosen = "", top = MORE, tab = "ask", asking = null, looking = null;

// ---- the query ----------------------------------------------------------------------------------------------------

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const side = given.get("object") === null ? "subject" : "object";
  query.actor = given.get(side) ?? query.actor ?? "";
  query.relation = given.get("relation") ?? query.relation ?? "";
  query.inverse = side === "object";
  query.kind = AHEAD.includes(given.get("ask")) ? given.get("ask") : "who";
  query.other = given.get("other") ?? "";
  query.horizon = Math.min(10000, Math.max(1, Math.trunc(Number(given.get("horizon") ?? 1)) || 1));
  const step = Number(given.get("step") ?? NaN);
  query.step = Number.isInteger(step) && step >= overview.start ? Math.min(step, overview.end) : overview.end;
  chosen = given.get("candidate") ?? "";
  tab = TABS.includes(given.get("page")) ? given.get("page") : "ask";
}

function writeAddress() {
  const { kind, actor, relation, inverse, other, horizon, step } = query;
  const now = new URLSearchParams({ [inverse ? "object" : "subject"]: actor, relation, step: String(step) });
  if (kind !== "who") now.set("ask", kind);
  if (other) now.set("other", other);
  if (horizon !== 1) now.set("horizon", String(horizon));
  if (chosen) now.set("candidate", chosen);
  if (tab !== "ask") now.set("page", tab);
  history.replaceState(null, "", `#${now}`);
}

const actorBox = new SearchBox(byId("actor"), byId("actor-list"), "/v1/entities", (name) => change({ actor: name }));
const relationBox = new SearchBox(byId("relation"), byId("relation-list"), "/v1/relations", (name) => change({ relation: name }));

const otherBox = new SearchBox(byId("other"), byId("other-list"), "/v1/entities", (name) => change({ other: name }));
const assumed = new Assumed(() => forecast());

function change(what) {
  Object.assign(query, what);
  if (!("step" in what)) [chosen, top] = ["", MORE];
  showQuery();
  clearTimeout(change.timer);
  change.timer = setTimeout(forecast, "step" in what ? 140 : 0);
}

/** A relation as people read it: its label where it is a code. */
const shown = (relation) => (Object.hasOwn(overview.labels, relation) ? overview.labels[relation] : relation);

function showQuery() {
  const { kind, actor, relation, inverse, other, horizon, step } = query, time = label(overview.clock, step);
  for (const radio of document.getElementsByName("kind")) radio.checked = radio.value === kind;
  byId("kind-words").textContent = KIND_WORDS[kind];
  byId("relation-field").hidden = byId("direction-field").hidden = ["whom", "what"].includes(kind);
  byId("other-field").hidden = ["who", "whom"].includes(kind);
  byId("horizon").value = horizon;
  byId("horizon-unit").textContent = horizon === 1 ? "step" : "steps";
  otherBox.show(other);
  assumed.suggest({ subject: actor, relation, object: other, time: label(overview.clock, overview.end) });
  actorBox.show(actor);
  relationBox.show(relation, shown(relation));
  for (const radio of document.getElementsByName("inverse")) radio.checked = (radio.value === "1") === inverse;
  const slider = byId("step");
  [slider.max, slider.min] = [overview.end, overview.start];
  slider.value = step;
  slider.setAttribute("aria-valuetext", step === overview.end ? `${time}, the first unknown step` : time);
  byId("time").textContent = time;
  byId("earlier").disabled = step === overview.start;
  byId("later").disabled = byId("latest").disabled = step === overview.end;
  [...byId("activity").children].forEach((bar, i) => bar.classList.toggle("past", overview.start + i * overview.stretch < step));
}

function drawActivity() {
  const most = Math.max(1, ...overview.activity), svg = byId("activity"), space = "http://www.w3.org/2000/svg";
  svg.setAttribute("viewBox", `0 0 ${Math.max(1, (overview.end - overview.start) / overview.stretch)} 1`);
  svg.replaceChildren(...overview.activity.map((count, i) => {
    const bar = document.createElementNS(space, "rect"), height = count / most;
    for (const [name, value] of Object.entries({ x: i + 0.1, y: 1 - height, width: 0.8, height })) bar.setAttribute(name, value);
    return bar;
  }));
}

// ---- candidates ------------------------------------------------------------------------------------------------------

/** When, and as if what had happened: without a time of one's own the first step after the assumed events. */
function circumstances() {
  const { events } = assumed, next = query.step === overview.end;
  return { ...(events.length ? { assume: events } : {}), ...(events.length && next ? {} : { at: label(overview.clock, query.step) }) };
}

async function lookAhead() {
  asking?.abort();
  const { signal } = asking = new AbortController(), sent = request(query, top);
  [byId("who").hidden, byId("ahead").hidden, byId("changes").hidden] = [true, true, true];
  writeAddress();
  if (!sent) {
    byId("asked").textContent = query.kind === "what" ? "Name the other party." : "Name two of actor, relation and other party.";
    return;
  }
  try {
    const found = await ask(sent[0], { body: { ...sent[1], ...circumstances() }, signal });
    say("");
    const until = found.until === found.time ? `at ${found.time}` : `from ${found.time} to ${found.until}`;
    const words = [found.subject ?? "anybody", found.relation === null ? "anything" : shown(found.relation), found.object ?? "anybody"];
    byId("asked").replaceChildren(make("b", {}, words[0]), " → ", make("em", {}, words[1]), " → ", make("b", {}, words[2]), `, ${until} `,
      make("span", { class: "muted" }, "(from events before it alone)"));
    byId("ahead").hidden = false;
    lookAhead.last = found;
    if (tab === "ask") showAhead(query.kind, found, shown);
    showChanges(found.assumed);
    await showReasons(query.kind, found, signal);
  } catch (problem) {
    if (problem.name !== "AbortError") fail(problem);
  }
}

async function forecast() {
  if (query.kind !== "who") {
    await lookAhead();
    return;
  }
  asking?.abort();
  const { signal } = asking = new AbortController();
  const { actor, relation, inverse, step, horizon } = query;
  [byId("who").hidden, byId("ahead").hidden] = [false, true];
  if (!actor || !relation) return;
  const known = inverse ? { object: actor } : { subject: actor };
  byId("list").setAttribute("aria-busy", "true");
  try {
    const [found, happened] = await Promise.all([
      ask("/v1/forecast", { body: { ...known, relation, top, ...circumstances(), ...(horizon > 1 ? { horizon } : {}) }, signal }),
      ask("/explore/outcome", { params: { ...known, relation, step }, signal }),
    ]);
    say("");
    candidates = found.candidates;
    if (!candidates.some(({ name }) => name === chosen)) chosen = candidates[0]?.name ?? "";
    showAsked(found, happened);
    showChanges(found.assumed);
    showCandidates(new Set(happened ?? []));
    writeAddress();
    await explain();
  } catch (problem) {
    if (problem.name !== "AbortError") fail(problem);
  } finally {
    if (!signal.aborted) byId("list").removeAttribute("aria-busy");
  }
}

/** No candidate may stand under a query that has no answer. */
function fail(problem) {
  say(problem.message);
  candidates = [];
  byId("asked").replaceChildren();
  byId("detail").hidden = byId("ahead").hidden = byId("changes").hidden = true;
  showCandidates(new Set());
}

function showAsked({ time, until, p_event: chance }, happened) {
  const { actor, relation, inverse, step } = query;
  const unknown = make("b", {}, "?");
  const words = inverse
    ? ["Who comes next: ", unknown, " → ", make("em", {}, shown(relation)), " → ", make("b", {}, actor)]
    : ["Who comes next: ", make("b", {}, actor), " → ", make("em", {}, shown(relation)), " → ", unknown];
  const truth = happened === null ? "nobody knows yet"
    : happened.length ? `it was ${happened.slice(0, 3).join(", ")}${happened.length > 3 ? ` and ${happened.length - 3} more` : ""}`
      : "it did not happen that day";
  const when = until === time ? `, at ${time} ` : `, from ${time} to ${until} `;
  const any = chance == null ? "" : `; ${percent(chance)} that there is such an event with anybody`;
  byId("asked").replaceChildren(...words, when, make("span", { class: "muted" },
    `(from ${step === overview.start ? "no events at all" : "events before it alone"}${any}; ${overview.clock.unit === 86400 ? truth : truth.replace("that day", "then")})`));
}

function movement({ rank, backbone_rank: before }, happened) {
  const by = before - rank, kind = by > 0 ? "up" : by < 0 ? "down" : "same";
  const sign = { up: `▲ ${whole(by)}`, down: `▼ ${whole(-by)}`, same: "=" }[kind];
  const words = { up: `up ${by} from ${before}`, down: `down ${-by} from ${before}`, same: "as before" }[kind];
  return [
    make("span", { class: "ranks", "aria-hidden": "true" }, `${whole(before)} → ${whole(rank)}`),
    happened ? make("span", { class: "happened" }, "✓ happened") : null,
    make("span", { class: `move ${kind}`, "aria-hidden": "true" }, sign), make("span", { class: "hidden" }, words),
  ];
}

function showCandidates(happened) {
  byId("list").replaceChildren(...candidates.map((candidate, i) => make(
    "li", { role: "option", id: `candidate-${i}`, "data-name": candidate.name, "aria-selected": "false", tabindex: "-1" },
    make("span", { class: "rank" }, whole(candidate.rank)),
    make("span", { class: "name" }, candidate.name),
    make("span", { class: "value muted small" },
      candidate.p_given_event == null ? plain(candidate.score) : percent(candidate.p_given_event)),
    make("span", { class: "moved" }, ...movement(candidate, happened.has(candidate.name))),
  )));
  const likely = candidates[0]?.p_given_event != null;
  byId("units").textContent = `backbone’s rank → now, ${likely ? "probability" : "log score"}`;
  byId("more").hidden = candidates.length < top || top >= MOST;
  markChosen();
}

function markChosen() {
  for (const option of byId("list").children) {
    const own = option.dataset.name === chosen;
    option.setAttribute("aria-selected", String(own));
    option.tabIndex = own ? 0 : -1;
  }
}

function choose(option, focus) {
  if (!option) return;
  const changed = option.dataset.name !== chosen;
  chosen = option.dataset.name;
  markChosen();
  if (focus) option.focus();
  if (!changed) return;
  writeAddress();
  explain().catch((problem) => problem.name === "AbortError" || say(problem.message));
}

// ---- why -------------------------------------------------------------------------------------------------------------

async function explain() {
  looking?.abort();
  const { signal } = looking = new AbortController();
  const { actor, relation, inverse, step } = query, candidate = chosen;
  byId("detail").hidden = !candidate;
  if (!candidate) return;
  const triple = inverse ? { subject: candidate, relation, object: actor, candidate: "subject" }
    : { subject: actor, relation, object: candidate, candidate: "object" };
  const [why, past, opinions] = await Promise.all([
    ask("/v1/explain", { body: { ...triple, at: label(overview.clock, step) }, signal }),
    ask("/explore/pair", { params: { actor, candidate, step }, signal }),
    ask("/explore/backbone", { params: { ...triple, step }, signal }),
  ]);
  explain.last = { why, past, opinions, candidate };
  // what is not to be seen has no width to draw in; it is drawn when its page is opened
  if (tab === "ask") showWhy();
}

/** [name, value] of everything that the score is the sum of, the backbone's own score first. */
function partsOf(why) {
  const base = ["the backbone’s score", why.base];
  if (why.residual_name === "bridgemem") {
    const name = (event) => `${event.time} ${event.direction ? "←" : "→"} ${shown(event.relation)}`;
    return [base, ...why.events.map((event) => [name(event), event.part])];
  }
  const groups = Object.entries(why.groups).map(([name, value]) => [GROUP_WORDS[name] ?? name, value]);
  return groups.length ? [base, ["the start, for all alike", why.start], ...groups] : [base];
}

function showWhy() {
  const { why, past, candidate } = explain.last, { actor, relation, step } = query;
  byId("why-title").textContent = `Why ${candidate}?`;
  byId("headline").textContent = why.headline;
  byId("reasons").replaceChildren(...why.reasons.map(({ sentence }) => make("li", {}, sentence)));
  const shares = new Map(why.events.map((event) => [`${step - event.lag} ${event.relation} ${event.direction}`, event.part]));
  byId("seen").textContent = past.total === 0 ? "" : past.total > past.step.length
    ? `the newest ${whole(past.step.length)} of ${whole(past.total)} events` : `${whole(past.total)} event${past.total === 1 ? "" : "s"}, strong colours are recent`;
  showExact();
  const timeline = byId("timeline");
  if (past.total) {
    if (timeline.classList.replace("empty", "filled")) timeline.replaceChildren();
    timelineChart(timeline, past, { clock: overview.clock, step, actor, candidate, relation, shares, shown });
  } else {
    window.Plotly.purge(timeline);
    timeline.classList.remove("filled");
    timeline.classList.add("empty");
    timeline.setAttribute("aria-label", "The two never interacted.");
    timeline.replaceChildren("The two never interacted.");
  }
}

/** The exact parts, for those who open them: what is closed has no width to draw in. */
function showExact() {
  if (!byId("exact").open || !explain.last) return;
  const { why, opinions, candidate } = explain.last, parts = partsOf(why);
  byId("sentence").textContent = why.sentence;
  showFacts(why);
  byId("sum").textContent = `${plain(why.base)} ${why.residual < 0 ? "−" : "+"} ${Math.abs(why.residual).toFixed(2)} = ${plain(why.score)}`;
  table(byId("parts"), ["part", "log score"], [...parts, ["score", why.score]].map(([name, value]) => [name, plain(value, 6)]));
  showEvents(why);
  evidenceChart(byId("evidence"), parts, why.score);
  backboneChart(byId("backbone"), opinions, candidate);
}

function showFacts(why) {
  const facts = why.residual_name === "bridgemem"
    ? { "uncertainty": plain(why.uncertainty), "gate": plain(why.gate), "λ": plain(why.lam), "A (count)": signed(why.a_ct), "A (reader)": signed(why.a_nn), "ρ": plain(why.rho) }
    : { "uncertainty": plain(why.uncertainty), "residual": signed(why.residual), "from what happened between them": signed(why.between),
      ...(why.common_neighbours.length ? { "common neighbours": why.common_neighbours.slice(0, 3).map(({ name }) => name).join(", ") } : {}) };
  byId("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function showEvents(why) {
  const rows = why.events.map((event) => [
    `${event.subject} → ${shown(event.relation)} → ${event.object}`, event.time, whole(event.lag), `${(100 * event.share).toFixed(1)}%`, signed(event.part, 4),
  ]);
  if (why.earlier) {
    const { count, first, last, share, part } = why.earlier;
    rows.push([`${whole(count)} earlier event${count === 1 ? "" : "s"}`, first === last ? first : `${first} to ${last}`, "", `${(100 * share).toFixed(1)}%`, signed(part, 4)]);
  }
  byId("events-box").hidden = !rows.length;
  table(byId("score-events"), ["event", "time", "steps before", "share", "part"], rows);
}

// ---- the rest --------------------------------------------------------------------------------------------------------

function say(problem) {
  byId("problem").textContent = problem;
  byId("problem").hidden = !problem;
}

async function showTab(name) {
  tab = name;
  for (const one of TABS) {
    byId(one).hidden = one !== name;
    byId(`tab-${one}`).setAttribute("aria-selected", String(one === name));
    byId(`tab-${one}`).tabIndex = one === name ? 0 : -1;
  }
  writeAddress();
  try {
    if (name === "quality") await showQuality();
    else if (name === "outlook") await showOutlook(shown);
    else if (name === "record") await showRecord();
    else if (query.kind !== "who") lookAhead.last && showAhead(query.kind, lookAhead.last, shown);
    else if (explain.last) showWhy();
  } catch (problem) {
    say(problem.message);
  }
}

function listen() {
  for (const radio of document.getElementsByName("inverse")) {
    radio.addEventListener("change", () => change({ inverse: radio.value === "1" }));
  }
  byId("step").addEventListener("input", (event) => change({ step: Number(event.target.value) }));
  byId("earlier").addEventListener("click", () => change({ step: Math.max(overview.start, query.step - 1) }));
  byId("later").addEventListener("click", () => change({ step: Math.min(overview.end, query.step + 1) }));
  byId("latest").addEventListener("click", () => change({ step: overview.end }));
  byId("more").addEventListener("click", () => { top = Math.min(MOST, top + MORE); forecast(); });
  byId("exact").addEventListener("toggle", showExact);
  byId("query").addEventListener("submit", (event) => event.preventDefault());
  byId("list").addEventListener("click", (event) => {
    choose(event.target.closest("li"), true);
    if (matchMedia("(max-width: 900px)").matches) byId("detail").scrollIntoView({ behavior: "smooth" });
  });
  byId("list").addEventListener("keydown", (event) => {
    const options = [...byId("list").children], now = options.findIndex((option) => option.dataset.name === chosen);
    const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: options.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(options[Math.max(0, Math.min(options.length - 1, to))], true);
  });
  for (const radio of document.getElementsByName("kind")) {
    radio.addEventListener("change", () => { lookAhead.last = null; change({ kind: radio.value }); });
  }
  byId("horizon").addEventListener("change", (event) => {
    change({ horizon: Math.min(10000, Math.max(1, Math.trunc(Number(event.target.value)) || 1)) });
  });
  for (const [place, name] of TABS.entries()) {
    byId(`tab-${name}`).addEventListener("click", () => showTab(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
      const other = TABS[(place + (event.key === "ArrowRight" ? 1 : TABS.length - 1)) % TABS.length];
      byId(`tab-${other}`).focus();
      showTab(other);
    });
  }
  // charts take their colours and lengths of labels from the page as it is when they are drawn
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => showTab(tab));
  matchMedia("(max-width: 700px)").addEventListener("change", () => showTab(tab));
  window.addEventListener("hashchange", () => { readAddress(); showQuery(); showTab(tab); forecast(); });
}

async function begin() {
  listen();
  try {
    const [about, model] = await Promise.all([ask("/explore/overview"), ask("/v1/model")]);
    overview = about;
    Object.assign(query, { actor: about.actor, relation: about.relation });
    byId("model").textContent = `${model.dataset} · ${model.backbone} with ${model.residual} residual · ${whole(model.events)} events of ${whole(model.entities)} actors`;
    readAddress();
    drawActivity();
    showQuery();
    if (!about.actor) say("There are no events yet, so there is nobody to ask about.");
    await Promise.all([forecast(), showTab(tab)]);
  } catch (problem) {
    say(problem.message);
  }
}

begin();
