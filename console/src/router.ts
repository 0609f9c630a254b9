// Keeps the address: what a page shows is in its path and query, so an address can be shared and goes back and forth.
import { signal } from "@preact/signals";

export type Query = Record<string, string>;
export interface Place {
  path: string;
  query: Query;
}

function read(): Place {
  return { path: location.pathname, query: Object.fromEntries(new URLSearchParams(location.search)) };
}

export const place = signal<Place>(read());
addEventListener("popstate", () => (place.value = read()));

export function href(path: string, query: Record<string, string | number | boolean | undefined | null> = {}): string {
  const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  const text = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

export function go(to: string, replace = false): void {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  place.value = read();
  if (!replace) document.getElementById("main")?.focus({ preventScroll: true });
}

// Changes fields of the query of this page; empty ones are removed.
export function setQuery(fields: Record<string, string | number | boolean | undefined>, replace = true): void {
  go(href(place.value.path, { ...place.value.query, ...fields }), replace);
}

document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = (event.target as Element | null)?.closest("a");
  if (!link || link.target || link.hasAttribute("download")) return;
  const to = link instanceof SVGElement ? link.getAttribute("href") : link.getAttribute("href");
  if (!to?.startsWith("/") || to.startsWith("/api/")) return;
  event.preventDefault();
  go(to);
});
