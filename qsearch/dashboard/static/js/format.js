// Numbers and times for people.

export function measure(value, about) {
  if (value === null || value === undefined) return about?.name === "sqnr_db" ? "∞" : "–";
  if (about?.unit === "%") return `${(100 * value).toFixed(2)} %`;
  if (about?.name === "sqnr_db" && value >= 400) return "∞";
  if (about?.unit === "dB") return `${value.toFixed(2)} dB`;
  return about?.unit ? `${number(value)} ${about.unit}` : number(value);
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return plain(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 })
    : size >= 0.01 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}

export function plain(value) {
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
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
