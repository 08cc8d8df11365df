// Numbers, units and times for people: tables, tooltips, axes and reports all use these.

export function measure(value, about) {
  if (value === null || value === undefined) return about?.infinite ? "∞" : "–";
  if (isInfinite(value, about)) return "∞";
  if (about?.unit === "%") return `${(100 * value).toFixed(2)} %`;
  if (about?.unit === "dB") return `${value.toFixed(2)} dB`;
  return about?.unit === "s" ? duration(value) : about?.unit ? `${number(value)} ${about.unit}` : number(value);
}

export function isInfinite(value, about) {
  return Boolean(about?.infinite) && Math.abs(value) >= about.infinite;
}

// A stored value in the unit that is shown.
export function shown(value, about) {
  return about?.unit === "%" ? 100 * value : value;
}

export function labelOf(about) {
  return about.unit ? `${about.words} (${about.unit})` : about.words;
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return plain(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 })
    : size >= 0.001 ? String(Number(value.toPrecision(5))) : value.toExponential(2);
}

// A difference, with its sign.
export function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
}

// The value of a parameter as it was given: 0.99999 stays 0.99999.
export function plain(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// A tick of an axis: as many digits as neighbours need.
export function tick(value) {
  const size = Math.abs(value);
  for (const [power, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= power) return `${Number((value / (letter === "k" ? 1e3 : power)).toPrecision(4))}${letter}`;
  }
  return size >= 1e-3 || !size ? String(Number(value.toPrecision(6))) : value.toExponential(1);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds > 0 && seconds < 0.095) return `${Math.max(1, Math.round(1000 * seconds))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(seconds / 86400)} days`;
}

export function ago(at) {
  const seconds = Date.now() / 1000 - at;
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} days ago`;
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  for (const [power, unit] of [[30, "GiB"], [20, "MiB"], [10, "KiB"]]) {
    if (size >= 2 ** power) return `${(size / 2 ** power).toPrecision(3)} ${unit}`;
  }
  return `${size} B`;
}

export function csv(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}
