// Searches the messages of a topic: the broker looks, says how far it is, and can be stopped.
import { useEffect, useState } from "preact/hooks";
import { stream, type Refusal } from "../api";
import { bytes, count, safe } from "../format";
import { go, href, place } from "../router";
import { Failure } from "../ui";
import { Rows, type Row } from "./messages";

interface Progress {
  records: number;
  bytes: number;
  matches: number;
  seconds: number;
  partition?: number;
  next?: number | string;
  end?: number | string;
  why?: string;
}

export function SearchForm({ topic }: { topic: string }) {
  const { query } = place.value;
  return (
    <form
      class="seek"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        const form = new FormData(event.currentTarget);
        const text = (name: string) => form.get(name) as string;
        go(href("/messages", { topic, partition: query.partition, search: text("search"), key: text("key"), from: text("from") }));
      }}
    >
      <label>
        Search <input name="search" size={34} maxLength={1000} defaultValue={query.search ?? ""} placeholder='text, regex:a.*b, $.id == 5' />
      </label>
      <label>
        Key <input name="key" size={12} defaultValue={query.key ?? ""} />
      </label>
      <label>
        Published by <input name="from" size={12} defaultValue={query.from ?? ""} />
      </label>
      <button type="submit">Search</button>
    </form>
  );
}

export function SearchRows({ topic }: { topic: string }) {
  const { query } = place.value;
  const fields = { topic, filter: query.search, key: query.key, origin: query.from, partition: query.partition || -1, offset: query.offset };
  const [rows, setRows] = useState<Row[]>([]);
  const [state, setState] = useState<Progress | null>(null);
  const [error, setError] = useState<Refusal | null>(null);
  const [running, setRunning] = useState(true);
  const [stop, setStop] = useState<() => void>(() => () => undefined);
  const sign = JSON.stringify(fields);
  useEffect(() => {
    setRows([]);
    setState(null);
    setError(null);
    setRunning(true);
    const close = stream(
      "/api/search",
      fields,
      {
        rows: (data: { rows: Row[] }) => setRows((before) => [...before, ...data.rows]),
        progress: setState,
        stopped: (data: Progress) => {
          setState(data);
          setRunning(false);
        },
        ended: () => setRunning(false),
      },
      (refusal) => {
        setError(refusal);
        setRunning(false);
      },
    );
    setStop(() => close);
    return close;
  }, [sign]);
  return (
    <>
      <Failure error={error} />
      <div class="row" role="status">
        {running ? (
          <button
            type="button"
            onClick={() => {
              stop();
              setRunning(false);
            }}
          >
            Stop
          </button>
        ) : null}
        <span>
          {running ? "Searching: " : "Done: "}
          {count(rows.length)} found
          {state ? ` in ${count(state.records)} messages, ${bytes(state.bytes)}, ${state.seconds} s` : ""}
          {state?.why ? `. Stopped because ${safe(state.why)}.` : ""}
        </span>
        {!running && state?.why && state.next !== undefined ? <a href={href("/messages", { ...query, partition: state.partition, offset: String(state.next) })}>Go on from here</a> : null}
        <a href={href("/messages", { topic, partition: query.partition })}>Leave the search</a>
      </div>
      <Rows topic={topic} rows={rows} empty={running ? "Nothing found so far." : "Nothing was found."} />
    </>
  );
}
