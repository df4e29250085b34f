// Asking the service, writing into the page, and the search boxes. Names reach the page as text only.

export const MINUS = "\u2212";

export async function ask(path, { params, body, signal } = {}) {
  const query = params ? `?${new URLSearchParams(params)}` : "";
  const sent = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  const answer = await fetch(path + query, { ...sent, signal });
  const found = await answer.json();
  if (!answer.ok) {
    throw Object.assign(new Error(found.error ?? `The service answered ${answer.status}.`), { status: answer.status });
  }
  return found;
}

/** An element with attributes and children; strings become text, never markup. */
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

export const byId = (id) => document.getElementById(id);

export function signed(value, digits = 2) {
  const size = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(size) !== 0 ? MINUS : "+") + size;
}

export const plain = (value, digits = 2) => signed(value, digits).replace("+", "");

export const whole = (value) => value.toLocaleString("en");

/** The time of a step as the data writes it; the service counts time in the same way. */
export function label(clock, step) {
  const time = clock.origin + step * clock.unit;
  if (clock.kind === "integer") return String(time);
  const text = new Date(time * 1000).toISOString();
  return clock.unit % 86400 === 0 && clock.origin % 86400 === 0 ? text.slice(0, 10) : text.slice(0, 19).replace("T", " ");
}

export function table(into, header, rows) {
  const cell = (tag, value, i) => make(tag, { class: i ? "number" : null, scope: tag === "th" ? "col" : null }, value);
  into.replaceChildren(
    make("thead", {}, make("tr", {}, ...header.map((value, i) => cell("th", value, i)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((value, i) => cell("td", value, i))))),
  );
}

/** Radio buttons side by side; calls back with the value chosen. */
export function segments(into, name, options, chosen, changed) {
  into.replaceChildren(...options.map(([value, text]) => {
    const input = make("input", { type: "radio", name, value, checked: value === chosen });
    input.addEventListener("change", () => changed(value));
    return make("label", {}, input, make("span", {}, text));
  }));
}

/** A search box with suggestions: arrows move, Enter takes, Escape and leaving put back what was chosen. */
export class SearchBox {
  constructor(input, list, path, chosen) {
    Object.assign(this, { input, list, path, chosen, value: "", text: "", found: [], active: -1, asked: null });
    for (const [name, value] of Object.entries({
      role: "combobox", "aria-autocomplete": "list", "aria-controls": list.id, "aria-expanded": "false",
    })) input.setAttribute(name, value);
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Suggestions");
    input.addEventListener("focus", () => input.select());
    input.addEventListener("click", () => this.search(""));
    input.addEventListener("input", () => this.later());
    input.addEventListener("keydown", (event) => this.pressed(event));
    input.addEventListener("blur", () => this.left());
    // pressing on a suggestion must not take the focus away from the box first
    list.addEventListener("mousedown", (event) => event.preventDefault());
    list.addEventListener("click", (event) => {
      const option = event.target.closest("li[data-place]");
      if (option) this.take(this.found[Number(option.dataset.place)].name);
    });
  }

  /** text: the value as people read it, where it is a code. */
  show(value, text = value) {
    [this.value, this.text] = [value, text];
    this.input.value = text;
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.search(this.input.value), 90);
  }

  async search(text) {
    this.asked?.abort();
    const asked = this.asked = new AbortController();
    try {
      const answer = await ask(this.path, { params: { q: text.slice(0, 200), limit: 12 }, signal: asked.signal });
      if (document.activeElement === this.input) this.suggest(answer.names);
    } catch (problem) {
      if (problem.name !== "AbortError") this.suggest([]);
    }
  }

  suggest(names) {
    this.found = names;
    this.list.replaceChildren(...names.map(({ name, label, events }, i) => make(
      "li", { role: "option", id: `${this.list.id}-${i}`, "data-place": i, "aria-selected": "false" },
      make("span", {}, label ?? name), make("small", {}, whole(events)),
    )));
    if (!names.length) this.list.append(make("li", { class: "none" }, "Nothing is called that."));
    this.open(true);
    this.mark(names.length ? 0 : -1);
  }

  open(wanted) {
    this.list.hidden = !wanted;
    this.input.setAttribute("aria-expanded", String(wanted));
    if (!wanted) this.input.removeAttribute("aria-activedescendant");
  }

  mark(place) {
    this.active = place;
    [...this.list.children].forEach((option, i) => {
      option.setAttribute("aria-selected", String(i === place));
      if (i === place) option.scrollIntoView({ block: "nearest" });
    });
    if (place >= 0) this.input.setAttribute("aria-activedescendant", `${this.list.id}-${place}`);
  }

  pressed(event) {
    const open = !this.list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const n = this.found.length, by = event.key === "ArrowDown" ? 1 : -1;
      if (!open) this.search("");
      else if (n) this.mark((this.active + by + n) % n);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (open && this.active >= 0) this.take(this.found[this.active].name);
    } else if (event.key === "Escape") {
      this.show(this.value, this.text);
      this.open(false);
    }
  }

  take(name) {
    clearTimeout(this.timer);
    this.asked?.abort();
    const changed = name !== this.value, found = this.found.find((one) => one.name === name);
    this.show(name, found?.label ?? name);
    this.open(false);
    if (changed) this.chosen(name);
  }

  left() {
    clearTimeout(this.timer);
    const exact = this.found.find(({ name }) => name === this.input.value);
    if (exact) this.take(exact.name);
    else this.show(this.value, this.text);
    this.open(false);
  }
}
