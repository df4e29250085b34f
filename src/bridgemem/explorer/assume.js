// What if: events to answer as if they had happened. They live on this page alone, and none is stored.

import { byId, make } from "./ask.js";

const FIELDS = ["subject", "relation", "object", "time"];
const MOST = 100;

export class Assumed {
  /** changed: called when the events are other ones. */
  constructor(changed) {
    Object.assign(this, { events: [], changed });
    byId("assume-add").addEventListener("click", () => this.add());
    byId("assume-clear").addEventListener("click", () => this.set([]));
    for (const name of FIELDS) {
      byId(`assume-${name}`).addEventListener("keydown", (event) => {
        if (event.key !== "Enter") return;
        event.preventDefault();
        this.add();
      });
    }
  }

  /** What stands in the fields unless the reader changes it. */
  suggest(values) {
    for (const name of FIELDS) if (!byId(`assume-${name}`).value) byId(`assume-${name}`).value = values[name] ?? "";
  }

  add() {
    const event = Object.fromEntries(FIELDS.map((name) => [name, byId(`assume-${name}`).value.trim()]));
    const missing = FIELDS.find((name) => !event[name]);
    if (missing) byId(`assume-${missing}`).focus();
    else if (this.events.length < MOST) this.set([...this.events, event]);
  }

  set(events) {
    this.events = events;
    this.show();
    this.changed();
  }

  show() {
    byId("assume-count").textContent = this.events.length ? `${this.events.length} assumed` : "";
    byId("assume-clear").hidden = !this.events.length;
    byId("assume-list").replaceChildren(...this.events.map((event, i) => {
      const gone = make("button", { type: "button", class: "quiet", "aria-label": `Remove assumed event ${i + 1}` }, "Remove");
      gone.addEventListener("click", () => this.set(this.events.filter((_, j) => j !== i)));
      return make("li", {}, `${event.time}: ${event.subject} → ${event.relation} → ${event.object} `, gone);
    }));
  }
}
