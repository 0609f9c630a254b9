// Writes figures and foreign text for people. Text of others is never markup, and what cannot be seen is shown as its code point.
import type { Shown, Whole } from "./api";

// Control characters, invisible and direction-changing ones, lone surrogates, private use and noncharacters.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\ufffe\uffff\ud800-\udfff]/u;
const HIDDEN_ALL = new RegExp(HIDDEN.source, "gu");

export function safe(text: string, lines = false): string {
  if (!HIDDEN.test(text)) return text;
  return text.replace(HIDDEN_ALL, (letter) => {
    if (lines && (letter === "\n" || letter === "\t")) return letter;
    return `⟨${(letter.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

export function count(value: Whole): string {
  return BigInt(Math.trunc(Number.isFinite(Number(value)) && typeof value === "number" ? value : 0) || String(value).split(".")[0] || 0).toLocaleString("en");
}

export function rate(value: number): string {
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(1);
  if (value < 10_000) return Math.round(value).toLocaleString("en");
  return value < 1e6 ? `${(value / 1e3).toFixed(1)}k` : `${(value / 1e6).toFixed(2)}M`;
}

export function bytes(value: Whole): string {
  let size = Number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1024 || unit === "TiB") return `${unit === "B" || size >= 100 ? Math.round(size) : size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return "";
}

export function duration(us: Whole): string {
  const seconds = Number(us) / 1e6;
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`;
}

export function time(us: Whole): string {
  const at = new Date(Number(us) / 1000);
  if (Number.isNaN(at.getTime())) return String(us);
  const two = (number: number, width = 2) => String(number).padStart(width, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${two(at.getMilliseconds(), 3)}`;
}

export function ago(seconds: number): string {
  const past = Date.now() / 1000 - seconds;
  return past < 5 ? "now" : `${duration(past * 1e6)} ago`;
}

export function bytesOf(shown: Shown): Uint8Array {
  if (shown.text !== undefined) return new TextEncoder().encode(shown.text);
  return Uint8Array.from(atob(shown.base64 ?? ""), (letter) => letter.charCodeAt(0));
}

export function brief(shown: Shown | null): string {
  if (shown === null) return "null";
  if (shown.text !== undefined) return safe(shown.text) + (shown.cut ? " …" : "");
  const data = bytesOf(shown);
  return `${[...data.slice(0, 24)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}${data.length > 24 || shown.cut ? " …" : ""}`;
}

export function hex(data: Uint8Array, most = 4096): string {
  const lines: string[] = [];
  for (let at = 0; at < Math.min(data.length, most); at += 16) {
    const row = [...data.slice(at, at + 16)];
    const left = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    const right = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${left} ${right}`);
  }
  if (data.length > most) lines.push(`… ${count(data.length - most)} more bytes`);
  return lines.join("\n");
}

// Indents JSON without reading its numbers: 12345678901234567890 stays as it is. null: it is not JSON.
export function pretty(text: string): string | null {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let out = "";
  let depth = 0;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  const line = () => `\n${"  ".repeat(depth)}`;
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      depth++;
      out += token + (next === "}" || next === "]" ? "" : line());
    } else if (token === "}" || token === "]") {
      depth--;
      const before = tokens[at - 1];
      out += (before === "{" || before === "[" ? "" : line()) + token;
    } else if (token === ",") out += token + line();
    else if (token === ":") out += ": ";
    else out += token;
  });
  return out;
}
