// Parts of every page: elements, an update in place, formats, tables and charts.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props` are attributes; true sets an empty one, false and null none. */
export function h(tag, props = {}, ...children) {
  return build(document.createElement(tag), props, children);
}

export function s(tag, props = {}, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

function build(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute("data-key") : null);
const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

/** Makes `old` like `fresh`, and keeps nodes that stay: focus, scroll and open parts survive. */
export function morph(old, fresh) {
  if (old.nodeType === 3) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  const own = (name) => (name === "open" && old.nodeName === "DETAILS") || (name === "value" && old === document.activeElement);
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !own(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value && !own(name)) old.setAttribute(name, value);
  }
  if (old.nodeName === "INPUT" && old !== document.activeElement && old.value !== fresh.value) old.value = fresh.value;
  morphChildren(old, [...fresh.childNodes]);
}

export function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) if (keyOf(child) !== null) keyed.set(keyOf(child), child);
  let at = old.firstChild;
  for (const child of fresh) {
    const key = keyOf(child);
    const match = key !== null ? keyed.get(key) : at && alike(at, child) ? at : null;
    if (match && alike(match, child)) {
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      morph(match, child);
    } else {
      old.insertBefore(child, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// Formats. `–` = not known.

export const none = "–";
const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

export function count(value) {
  if (!known(value)) return none;
  const number = Number(value);
  if (number >= 1e9) return `${(number / 1e9).toFixed(1)} G`;
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)} M`;
  return number.toLocaleString("en-GB", { maximumFractionDigits: number < 10 ? 2 : 0 });
}

export function time(seconds) {
  if (!known(seconds)) return none;
  const value = Number(seconds);
  if (value <= 0) return "0 s";
  if (value < 0.00005) return "< 0.1 ms";
  if (value < 0.9995) return `${value < 0.0095 ? (value * 1e3).toFixed(1) : Math.round(value * 1e3)} ms`;
  if (value < 59.95) return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} s`;
  const whole = Math.round(value), pair = (big, small, a, b) => `${Math.floor(whole / big)} ${a}${Math.floor((whole % big) / small) ? ` ${Math.floor((whole % big) / small)} ${b}` : ""}`;
  if (whole < 3600) return pair(60, 1, "min", "s");
  return whole < 86400 ? pair(3600, 60, "h", "min") : pair(86400, 3600, "d", "h");
}

/** A moment of a timeline, to a hundredth of a second. */
export const exact = (seconds) => (seconds < 60 ? `${Number(seconds).toFixed(2)} s` : time(seconds));
export const percent = (part) => (known(part) ? `${Math.round(part * 100)} %` : none);
export const clock = (unix, withSeconds = true) => (known(unix) ? new Date(unix * 1000).toLocaleTimeString("en-GB", withSeconds ? {} : { hour: "2-digit", minute: "2-digit" }) : none);
export const moment = (unix) => (known(unix) ? new Date(unix * 1000).toLocaleString("en-GB") : none);
/** A replica's name without scheme and trailing slash. */
export const short = (name) => (name || none).replace(/https?:\/\//, "").replace(/\/$/, "");
export function names(list, most) {
  const shown = list.slice(0, most).map(short).join(", ");
  return list.length > most ? `${shown} and ${list.length - most} more` : shown;
}
export const format = { count, time, percent, clock, moment, short, names };

// Components.

export const badge = (level, text, title) => h("span", { class: `badge ${level}`, title }, text);
export const muted = (...text) => h("span", { class: "muted" }, ...text);
export const button = (text, act, data = {}, props = {}) => h("button", { type: "button", "data-act": act, ...Object.fromEntries(Object.entries(data).map(([name, value]) => [`data-${name}`, value])), ...props }, text);
export const empty = (title, ...text) => h("div", { class: "empty" }, h("strong", {}, title), h("p", {}, ...text));

export function panel(title, props, ...children) {
  const { key, aside, note } = props;
  return h("section", { class: `panel ${props.class || ""}`, "data-key": key || title, "aria-label": title },
    h("div", { class: "head" }, h("h2", {}, title), note ? muted(note) : null, aside ? h("div", { class: "aside" }, aside) : null), ...children);
}

export function tile(label, value, note, chart) {
  return h("div", { class: "tile", "data-key": label }, h("span", { class: "label" }, label), h("span", { class: "value" }, value), h("span", { class: "muted" }, note), chart || null);
}

/** Bar of parts of a whole: `[class, amount, title]` each; `mark` is a place on it. */
export function bar(parts, whole, label, mark) {
  let at = 0;
  const scale = whole > 0 ? 100 / whole : 0;
  const rects = parts.map(([cls, amount]) => {
    const width = Math.max(0, Math.min(100 - at, amount * scale)), rect = s("rect", { class: cls, x: at.toFixed(2), y: 0, width: width.toFixed(2), height: 10 });
    at += width;
    return rect;
  });
  return s("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("title", {}, label), rects, known(mark) ? s("rect", { class: "mark", x: Math.min(99, Math.max(0, mark * scale - 0.5)).toFixed(2), y: 0, width: 1, height: 10 }) : null);
}

const sorts = new Map();

/** Sets the order of a table: by its column, the other way round the second time. */
export function sortBy(table, column) {
  const now = sorts.get(table);
  sorts.set(table, { column, down: now && now.column === column ? !now.down : true });
}

/** Table. A column is `{ name, value, cell, num, hide }`: `value` sorts and is exported, `cell` is shown. */
export function table(id, columns, rows, options = {}) {
  const shown = columns.filter((column) => !column.hide);
  const sort = sorts.get(id);
  const by = sort && shown.find((column) => column.name === sort.column);
  if (by) {
    const value = (row) => {
      const it = by.value(row);
      return Array.isArray(it) ? it.join(" ") : it ?? -Infinity;
    };
    const order = (a, b) => (typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b);
    rows = [...rows].sort((a, b) => order(value(a), value(b)) * (sort.down ? -1 : 1));
  }
  const head = shown.map((column) => h("th", { scope: "col", class: column.num ? "num" : null, "aria-sort": by === column ? (sort.down ? "descending" : "ascending") : null },
    column.value ? button([column.name, by === column ? (sort.down ? " ▾" : " ▴") : ""].join(""), "sort", { table: id, column: column.name }, { class: "sort", title: column.help }) : column.name));
  const most = options.most || 250, more = rows.length - most;
  const body = rows.slice(0, most).map((row) => {
    const open = options.open && options.open(row);
    return h("tr", { "data-key": options.key ? options.key(row) : null, class: open ? "opens" : null, tabindex: open ? 0 : null, "data-act": open ? "open" : null, "data-id": open || null, "aria-label": open ? `Open ${open}` : null },
      shown.map((column) => h("td", { class: column.num ? "num" : column.cls || null, "data-label": column.name }, column.cell ? column.cell(row) : String(column.value(row) ?? none))));
  });
  exports.set(id, { columns: shown.filter((column) => column.value), rows });
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": options.label || id, "data-key": id },
    h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)), more > 0 ? muted(`${count(more)} more rows: filter, sort, or save the table`) : null);
}

const exports = new Map();

/** Buttons that save a table as it stands. */
export const saves = (id) => h("span", { class: "nowrap" }, ["csv", "json"].map((form) => button(form.toUpperCase(), "save", { table: id, form }, { class: "quiet small", title: `Save this table as ${form.toUpperCase()}` })));

export function save(id, form) {
  const { columns, rows } = exports.get(id) || { columns: [], rows: [] };
  const quote = (value) => {
    const text = Array.isArray(value) ? value.join(" ") : String(value ?? "");
    const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  };
  const text = form === "csv"
    ? [columns.map((column) => quote(column.name)), ...rows.map((row) => columns.map((column) => quote(column.value(row))))].map((line) => line.join(",")).join("\n") + "\n"
    : JSON.stringify(rows.map((row) => Object.fromEntries(columns.map((column) => [column.name, column.value(row) ?? null]))), null, 1);
  const url = URL.createObjectURL(new Blob([text], { type: form === "csv" ? "text/csv" : "application/json" }));
  const link = h("a", { href: url, download: `penstock-${id}.${form}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Path through the values; gaps where a value is not known. */
function path(values, xs, y, step) {
  let text = "", pen = false;
  values.forEach((value, at) => {
    if (!known(value)) {
      pen = false;
      return;
    }
    const x = xs[at].toFixed(1), to = y(value).toFixed(1);
    text += pen ? (step ? `H${x}V${to}` : `L${x} ${to}`) : `M${x} ${to}`;
    pen = true;
  });
  return text;
}

/** Chart over time. A series is `{ name, cls, values, step, area }`. */
export function chart({ times, series, height = 96, unit = "", label }) {
  const width = 600, most = Math.max(1, ...series.flatMap((row) => row.values.filter(known))) * 1.08;
  const [first, last] = [times[0], times[times.length - 1]], span = Math.max(1e-9, last - first);
  const xs = times.map((at) => ((at - first) / span) * width), y = (value) => height - (value / most) * height;
  const drawn = series.map((row) => {
    const line = path(row.values, xs, y, row.step);
    const area = row.area && line && !row.values.some((value) => !known(value)) ? s("path", { class: `area ${row.cls}`, d: `${line}L${width} ${height}L0 ${height}Z` }) : null;
    return [area, s("path", { class: `line ${row.cls}`, d: line })];
  });
  const now = series.map((row) => `${row.name} ${count(row.values[row.values.length - 1])}`).join(", ");
  return h("figure", { class: "chart" },
    h("figcaption", {}, series.map((row) => h("span", { class: `key ${row.cls}` }, row.name, " ", h("b", {}, count(row.values[row.values.length - 1]), unit)))),
    h("div", { class: "plot" }, h("span", { class: "most" }, count(Math.round(most / 1.08 * 100) / 100)),
      s("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: now ${now}` }, [0.25, 0.5, 0.75].map((part) => s("path", { class: "grid", d: `M0 ${height * part}H${width}` })), drawn)),
    h("div", { class: "axis" }, h("span", {}, clock(first, false)), h("span", {}, clock(last, false))));
}

export function spark(values, label) {
  const most = Math.max(1, ...values), step = 100 / Math.max(1, values.length - 1);
  const line = path(values, values.map((_, at) => at * step), (value) => 23 - (value / most) * 22, false);
  return s("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label }, s("path", { class: "line first", d: line }));
}
