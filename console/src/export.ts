// Saves what a list shows as CSV or JSON lines. A cell that begins like a formula is made harmless: spreadsheets run it.
import { get, type Fields } from "./api";

const ROWS_MAX = 20_000;
const PAGE = 500;
const FORMULA = /^[\s\0]*[=+\-@|%\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]/; // also behind blanks, and in their wide forms

export type Kind = "csv" | "jsonl";

function cell(value: unknown): string {
  const text = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  const harmless = typeof value !== "number" && FORMULA.test(text) ? `'${text}` : text;
  return /[",;\n\r]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

export function csv(rows: Record<string, unknown>[]): string {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return [names.map(cell).join(","), ...rows.map((row) => names.map((name) => cell(row[name])).join(","))].join("\r\n") + "\r\n";
}

export function save(name: string, rows: Record<string, unknown>[], kind: Kind): Promise<number> {
  const text = kind === "csv" ? csv(rows) : rows.map((row) => `${JSON.stringify(row)}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  link.download = `${name}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  return Promise.resolve(rows.length);
}

// All pages of a list, up to ROWS_MAX rows.
export async function saveList(name: string, path: string, fields: Fields, kind: Kind): Promise<number> {
  const rows: Record<string, unknown>[] = [];
  for (let skip = 0; skip < ROWS_MAX; skip += PAGE) {
    const page = await get<{ total: number; rows: Record<string, unknown>[] }>(path, { ...fields, skip, limit: PAGE });
    rows.push(...page.rows);
    if (skip + PAGE >= page.total) break;
  }
  return save(name, rows, kind);
}
