// Numbers in few characters; a dash where there is none.

const MINUS = "\u2212";

/** Three digits that matter; powers of ten only where plain figures would be long. */
export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return "\u2013";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1).replace("-", MINUS).replace("e+", "e");
  const text = Number.isInteger(value) || size >= 1000 ? grouped(value) : size >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  return text.replace("-", MINUS);
}

/** The number with its sign always. */
export function signed(value) {
  const text = number(value);
  return typeof value === "number" && value > 0 ? `+${text}` : text;
}

/** A share as percent. */
export function percent(share) {
  if (typeof share !== "number") return "\u2013";
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}\u202f%`;
}

/** Whole numbers with thin spaces between thousands. */
export function grouped(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** Seconds as people say them: 45 s, 3 min, 2 h 05 min, 3 d 4 h. */
export function duration(seconds) {
  if (typeof seconds !== "number") return "\u2013";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** One of two words, by number. */
export function plural(count, one, many) {
  return `${grouped(count)} ${count === 1 ? one : many || `${one}s`}`;
}
