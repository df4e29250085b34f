// The page of the events to come: the likeliest, or those that are likelier than usual.

import { ask, byId, make, segments, table, whole } from "./ask.js";
import { barChart, percent } from "./probability.js";

const SHOWN = 12, MOST = 50;
const chosen = { horizon: 7, surprising: false, watch: "" };
let last = null, asking = null, shown = (relation) => relation;

const event = (one) => `${one.subject} → ${shown(one.relation)} → ${one.object}`;

export async function showOutlook(words) {
  shown = words;
  segments(byId("outlook-horizon"), "outlook-horizon", [[1, "1 step"], [7, "7 steps"], [30, "30 steps"]], chosen.horizon, (horizon) => change({ horizon }));
  segments(byId("outlook-kind"), "outlook-kind", [[false, "Likeliest"], [true, "Most surprising"]], chosen.surprising, (surprising) => change({ surprising }));
  byId("outlook-watch").onchange = (input) => change({ watch: input.target.value.trim() });
  if (last) draw();
  else await look();
}

function change(what) {
  Object.assign(chosen, what);
  look().catch((problem) => { if (problem.name !== "AbortError") fail(problem); });
}

function fail(problem) {
  byId("outlook-asked").textContent = problem.message;
  byId("outlook-card").hidden = true;
}

async function look() {
  asking?.abort();
  const { signal } = asking = new AbortController();
  byId("outlook-card").setAttribute("aria-busy", "true");
  try {
    const { watch, ...rest } = chosen;
    last = await ask("/v1/outlook", { body: { ...rest, top: MOST, ...(watch ? { watch: [watch] } : {}) }, signal });
    draw();
  } catch (problem) {
    if (problem.name !== "AbortError") fail(problem);
  } finally {
    if (!signal.aborted) byId("outlook-card").removeAttribute("aria-busy");
  }
}

function draw() {
  const { candidates: rows, surprising } = last;
  byId("outlook-card").hidden = false;
  byId("outlook-asked").replaceChildren(
    `${surprising ? "Most surprising" : "Likeliest"} events from ${last.time} to ${last.until} `,
    make("span", { class: "muted" }, `(of ${whole(last.events)} that happened before; from events before ${last.time} alone)`),
  );
  byId("outlook-chart").hidden = !rows.length;
  if (rows.length) {
    barChart(byId("outlook-chart"), rows.slice(0, SHOWN).map((one) => ({
      name: event(one), value: one.p_event, note: `usually ${percent(one.usual)}`,
    })), `p_event, until ${last.until}`);
  }
  table(byId("outlook-table"), ["event", "p_event", "usual", "surprise", "earlier", "last"], rows.map((one) => [
    event(one), percent(one.p_event), percent(one.usual), one.surprise.toFixed(2), whole(one.past_events), one.last ?? "never",
  ]));
  byId("outlook-meaning").textContent = [last.meaning, last.remark].filter(Boolean).join(" ");
}
