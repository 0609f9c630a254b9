// Shows messages of a topic: the last ones, from an offset or a time on, as they come.
import { useEffect, useState } from "preact/hooks";
import { stream, useAsk, useLive, type Refusal, type Shown, type Whole } from "../api";
import { brief, count, safe, time } from "../format";
import { go, href, place, setQuery } from "../router";
import { Failure, Loading, Text } from "../ui";
import { Table, type Column } from "../list";
import { PublishDialog } from "./publish";
import { SearchForm, SearchRows } from "./search";

export interface Row {
  partition: number;
  offset: Whole;
  time_us: Whole;
  key: Shown | null;
  value: Shown | null;
  headers: [string, Shown | null][];
  origin: string;
  expiry_us: Whole;
}
interface Answer {
  rows: Row[];
  ranges: { partition: number; start: Whole; end: Whole; first: Whole; next: Whole }[];
  newest: boolean;
}

const TAIL_KEPT = 200;

export function Messages() {
  const { query } = place.value;
  if (!query.topic) return <ChooseTopic />;
  return <OfTopic key={query.topic} topic={query.topic} />;
}

function ChooseTopic() {
  const { query } = place.value;
  const { data, error } = useLive<{ rows: { name: string; records: number }[] }>("/api/topics", { filter: query.filter, sort: "rate", limit: 50 });
  return (
    <>
      <div class="bar">
        <h1>Messages</h1>
        <input type="search" aria-label="Filter topics" placeholder="Part of a topic's name" value={query.filter ?? ""} onInput={(event) => setQuery({ filter: event.currentTarget.value })} />
      </div>
      <p>Choose a topic; the busiest come first.</p>
      {data ? (
        <ul class="choice">
          {data.rows.map((row) => (
            <li key={row.name}>
              <a href={href("/messages", { topic: row.name })}>
                <Text of={row.name} />
              </a>{" "}
              <span class="quiet">{count(row.records)}</span>
            </li>
          ))}
        </ul>
      ) : (
        <Loading error={error} />
      )}
    </>
  );
}

function OfTopic({ topic }: { topic: string }) {
  const { query } = place.value;
  const tailing = query.tail === "true";
  const [publishing, setPublishing] = useState(false);
  return (
    <>
      <div class="bar">
        <h1>
          Messages of{" "}
          <a href={href("/topic", { topic })}>
            <Text of={topic} />
          </a>
        </h1>
        <button type="button" aria-pressed={tailing} onClick={() => setQuery({ tail: !tailing, offset: "", time: "", search: "", key: "", from: "" })}>
          {tailing ? "Stop the tail" : "Tail"}
        </button>
        <button type="button" onClick={() => setPublishing(true)}>
          Publish
        </button>
      </div>
      <Seek topic={topic} />
      <SearchForm topic={topic} />
      {tailing ? <TailRows topic={topic} partition={query.partition} /> : query.search || query.key || query.from ? <SearchRows topic={topic} /> : <PageRows topic={topic} />}
      {publishing ? <PublishDialog start={{ topic }} close={() => setPublishing(false)} /> : null}
    </>
  );
}

function Seek({ topic }: { topic: string }) {
  const { query } = place.value;
  const { data } = useAsk<{ partition_rows: { number: number }[] }>("/api/topic", { topic });
  return (
    <form
      class="seek"
      onSubmit={(event) => {
        event.preventDefault();
        const form = new FormData(event.currentTarget);
        go(href("/messages", { topic, partition: form.get("partition") as string, offset: form.get("offset") as string, time: form.get("time") as string }));
      }}
    >
      <label>
        Partition{" "}
        <select name="partition" value={query.partition ?? ""} onChange={(event) => setQuery({ partition: event.currentTarget.value })}>
          <option value="">all</option>
          {(data?.partition_rows ?? []).map((row) => (
            <option key={row.number} value={String(row.number)}>
              {row.number}
            </option>
          ))}
        </select>
      </label>
      <label>
        From offset <input name="offset" inputmode="numeric" pattern="[0-9]*" size={12} defaultValue={query.offset ?? ""} />
      </label>
      <label>
        or time <input name="time" type="datetime-local" step="1" defaultValue={query.time ?? ""} />
      </label>
      <button type="submit">Go</button>
      <a href={href("/messages", { topic, partition: query.partition })}>Last ones</a>
    </form>
  );
}

function PageRows({ topic }: { topic: string }) {
  const { query } = place.value;
  const at = query.time ? new Date(query.time).getTime() : Number.NaN;
  const fields = { topic, partition: query.partition || -1, offset: query.offset, time_ms: Number.isNaN(at) ? undefined : at };
  const { data, error, again } = useAsk<Answer>("/api/messages", fields);
  if (!data) return <Loading error={error} />;
  const one = data.ranges.length === 1 ? data.ranges[0]! : null;
  const older = one ? BigInt(one.first) - 50n : 0n;
  return (
    <>
      <div class="row">
        {one && BigInt(one.first) > BigInt(one.start) ? (
          <a href={href("/messages", { topic, partition: one.partition, offset: String(older > BigInt(one.start) ? older : BigInt(one.start)) })}>← Older</a>
        ) : null}
        {one && BigInt(one.next) < BigInt(one.end) ? <a href={href("/messages", { topic, partition: one.partition, offset: String(one.next) })}>Newer →</a> : null}
        <button type="button" class="plain" onClick={again}>
          Read again
        </button>
        <span class="quiet">{one ? `offsets ${count(one.start)} to ${count(one.end)}` : `${data.ranges.length} partitions`}</span>
      </div>
      <Rows topic={topic} rows={data.rows} empty="No message is there." />
    </>
  );
}

function TailRows({ topic, partition }: { topic: string; partition?: string }) {
  const [rows, setRows] = useState<Row[]>([]);
  const [skipped, setSkipped] = useState(0);
  const [error, setError] = useState<Refusal | null>(null);
  useEffect(() => {
    setRows([]);
    setSkipped(0);
    const on = {
      rows: (data: { rows: Row[]; skipped: number }) => {
        setRows((before) => [...data.rows.reverse(), ...before].slice(0, TAIL_KEPT));
        setSkipped((before) => before + data.skipped);
      },
    };
    return stream("/api/tail", { topic, partition: partition || -1 }, on, setError);
  }, [topic, partition]);
  return (
    <>
      <Failure error={error} />
      <p class="quiet" role="status">
        The newest come on top. {skipped ? `${count(skipped)} came faster than they could be shown.` : ""}
      </p>
      <Rows topic={topic} rows={rows} empty="Waiting for messages …" />
    </>
  );
}

const columnsOf = (topic: string): Column<Row>[] => [
  { name: "place", title: "Place", class: "nowrap", show: (row) => <a href={href("/message", { topic, partition: row.partition, offset: row.offset })}>{`${row.partition}-${row.offset}`}</a> },
  { name: "time", title: "Time", class: "nowrap", show: (row) => time(row.time_us) },
  { name: "key", title: "Key", class: "mono clip", show: (row) => (row.key ? <bdi>{brief(row.key)}</bdi> : <span class="quiet">none</span>) },
  { name: "value", title: "Value", class: "mono clip wide", show: (row) => (row.value ? <bdi>{brief(row.value)}</bdi> : <span class="quiet">null</span>) },
  { name: "headers", title: "Headers", number: true, show: (row) => row.headers.length || "" },
  { name: "origin", title: "From", class: "clip", show: (row) => safe(row.origin) },
];

export function Rows({ topic, rows, empty }: { topic: string; rows: Row[]; empty: string }) {
  return <Table label="Messages" name="messages" rows={rows} columns={columnsOf(topic)} id={(row) => `${row.partition}-${row.offset}`} empty={empty} />;
}
