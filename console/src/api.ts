// Asks the broker. Whole numbers beyond 2^53 come as text and stay text.
import { useEffect, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { go, href, place } from "./router";

export type Whole = number | string;
export interface Shown {
  size: number;
  text?: string;
  base64?: string;
  cut: boolean;
}
export type Fields = Record<string, string | number | boolean | undefined | null>;

export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string = "",
  ) {
    super(message);
  }
}

export interface Me {
  name: string;
  roles: string[];
  permissions: string[];
  administers: boolean;
  version: string;
  kernel: string;
  idle_seconds: number;
  doors: string[];
}
export const me = signal<Me | null>(null);

export function toLogin(): void {
  me.value = null;
  if (place.value.path !== "/login") go(href("/login", { next: place.value.path + location.search }), true);
}

async function answerOf(response: Response): Promise<any> {
  const body = await response.json().catch(() => ({ error: `the broker answered ${response.status}` }));
  if (response.ok) return body;
  if (response.status === 401 && !response.url.endsWith("/api/login")) toLogin();
  const request = response.status >= 500 && body.request ? ` (request ${body.request})` : "";
  throw new Refusal(response.status, body.error + request, body.hint);
}

export async function get<T>(path: string, fields: Fields = {}, signal?: AbortSignal): Promise<T> {
  return answerOf(await fetch(href(path, fields), { signal, headers: { accept: "application/json" } }));
}

export async function post<T>(path: string, body: unknown = {}): Promise<T> {
  return answerOf(await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));
}

export type Handlers = Record<string, (data: any) => void>;

// Opens a stream of events; the result closes it. A stream that breaks is opened again by the browser, unless the session is over.
export function stream(path: string, fields: Fields, on: Handlers, refused: (error: Refusal) => void): () => void {
  const source = new EventSource(href(path, fields));
  let closed = false;
  const close = () => {
    closed = true;
    source.close();
  };
  for (const [event, call] of Object.entries(on)) source.addEventListener(event, (message) => call(JSON.parse((message as MessageEvent).data)));
  source.addEventListener("refused", (message) => {
    const error = JSON.parse((message as MessageEvent).data);
    close();
    if (error.status === 401) toLogin();
    else refused(new Refusal(error.status, error.error, error.hint));
  });
  source.addEventListener("end", () => {
    close();
    on.ended?.({});
  });
  source.onerror = () => {
    if (closed || source.readyState !== EventSource.CLOSED) return;
    close();
    get(path, fields).catch((error: Refusal) => refused(error)); // the reason, which a stream does not tell
  };
  return close;
}

export interface Loaded<T> {
  data: T | null;
  error: Refusal | null;
}

// The answer to a question, kept fresh by a stream while the page is open.
export function useLive<T>(path: string, fields: Fields = {}): Loaded<T> {
  const of = href(path, fields);
  const [state, set] = useState<Loaded<T> & { of: string }>({ data: null, error: null, of });
  useEffect(() => {
    set((before) => ({ data: before.of.split("?")[0] === path ? before.data : null, error: null, of }));
    return stream("/api/live", { of }, { data: (data) => set({ data, error: null, of }) }, (error) => set({ data: null, error, of }));
  }, [of]);
  return state;
}

// The answer to a question, asked once; `again` asks anew.
export function useAsk<T>(path: string, fields: Fields = {}, turn: unknown = 0): Loaded<T> & { again: () => void } {
  const of = href(path, fields);
  const [count, setCount] = useState(0);
  const [state, set] = useState<Loaded<T>>({ data: null, error: null });
  useEffect(() => {
    const stop = new AbortController();
    get<T>(of, {}, stop.signal)
      .then((data) => set({ data, error: null }))
      .catch((error) => {
        if (!stop.signal.aborted) set({ data: null, error });
      });
    return () => stop.abort();
  }, [of, count, turn]);
  return { ...state, again: () => setCount((before) => before + 1) };
}
