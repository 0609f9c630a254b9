// Shows one topic: rate, partitions, who publishes, who reads, its settings; deletes it.
import { useState } from "preact/hooks";
import { post, useLive } from "../api";
import { ago, bytes, count, duration, rate, safe } from "../format";
import { Table, type Column } from "../list";
import { go, href, place } from "../router";
import { Action, Bar, Dialog, Facts, Failure, Field, Lag, Loading, note, Plot, retention, Text, TypedName, useFields, type Points } from "../ui";
import { PublishDialog } from "./publish";

interface ReaderRow {
  kind: "group" | "subscription";
  name: string;
  id: string;
  owner: string;
  door?: string;
  state: string;
  members: number;
  lag: number;
  rate: number;
  trend: number;
}
interface Answer {
  name: string;
  records: number;
  bytes: number;
  rate: number;
  byte_rate: number;
  published: number;
  durability: string;
  retention_us: number;
  retention_bytes: number;
  compact: boolean;
  spec: Record<string, string | number | boolean>;
  partition_rows: { number: number; start: number; end: number; bytes: number; failure: string | null }[];
  history: Points;
  producers: { origin: string; door: string; name: string; rate: number; seen: number }[];
  readers: ReaderRow[];
  dead_letters: number | null;
  dead_topic: string | null;
  may: { read: boolean; write: boolean; manage: boolean };
}

type Producer = Answer["producers"][number];
type Partition = Answer["partition_rows"][number];

const PRODUCERS: Column<Producer>[] = [
  { name: "name", title: "Who", show: (one) => <Text of={one.name || "(nobody)"} /> },
  { name: "door", title: "Door", show: (one) => safe(one.door) },
  { name: "rate", title: "Rate", number: true, show: (one) => `${rate(one.rate)}/s` },
  { name: "seen", title: "Last", show: (one) => ago(one.seen) },
];

const readersOf = (topic: string): Column<ReaderRow>[] => [
  { name: "name", title: "Who", show: (one) => (one.kind === "group" ? <a href={href("/group", { topic, group: one.name })}><Text of={one.name} /></a> : <Text of={one.name} />) },
  { name: "kind", title: "Kind", show: (one) => (one.kind === "group" ? "group" : `subscription (${safe(one.door ?? "")})`) },
  { name: "state", title: "State", show: (one) => one.state },
  { name: "rate", title: "Rate", number: true, show: (one) => `${rate(one.rate)}/s` },
  { name: "lag", title: "Lag", number: true, show: (one) => <Lag lag={one.lag} trend={one.trend} /> },
];

const partitionsOf = (topic: string): Column<Partition>[] => [
  { name: "number", title: "Number", show: (row) => <a href={href("/messages", { topic, partition: row.number })}>{row.number}</a> },
  { name: "start", title: "First offset", number: true, show: (row) => count(row.start) },
  { name: "end", title: "Next offset", number: true, show: (row) => count(row.end) },
  { name: "messages", title: "Messages", number: true, show: (row) => count(row.end - row.start) },
  { name: "bytes", title: "Size", number: true, show: (row) => bytes(row.bytes) },
  { name: "failure", title: "State", show: (row) => (row.failure ? <span class="bad">{safe(row.failure)}</span> : "takes writes") },
];

export function OneTopic() {
  const name = place.value.query.topic ?? "";
  const { data, error } = useLive<Answer>("/api/topic", { topic: name });
  const [open, setOpen] = useState("");
  if (!data) return <Loading error={error} />;
  return (
    <>
      <Bar title={<Text of={name} />}>
        {data.may.read ? (
          <a class="button" href={href("/messages", { topic: name })}>
            Messages
          </a>
        ) : null}
        {data.may.write ? (
          <button type="button" onClick={() => setOpen("publish")}>
            Publish
          </button>
        ) : null}
        {data.may.manage ? (
          <>
            <button type="button" onClick={() => setOpen("alter")}>
              Settings …
            </button>
            <button type="button" class="danger" onClick={() => setOpen("purge")}>
              Purge
            </button>
            <button type="button" class="danger" onClick={() => setOpen("delete")}>
              Delete
            </button>
          </>
        ) : null}
      </Bar>
      <Failure error={error} />
      <Facts
        of={[
          ["Messages", count(data.records)],
          ["Size", bytes(data.bytes)],
          ["In", `${rate(data.rate)}/s`],
          ["Written", `${bytes(data.byte_rate)}/s`],
          ["Since the start", count(data.published)],
          ["Durability", data.durability],
          ["Keeps", data.compact ? "the last of each key" : retention(data.retention_us, data.retention_bytes)],
          ["Dead letters", data.dead_letters && data.dead_topic ? <a href={href("/dead", { topic: name })}>{count(data.dead_letters)}</a> : count(data.dead_letters ?? 0)],
        ]}
      />
      <Plot title="Messages in" points={data.history} unit="/s" />
      <div class="columns">
        <section>
          <h2>Publishers</h2>
          <Table label="Publishers" rows={data.producers} columns={PRODUCERS} id={(one) => one.origin} empty="Nobody has published here yet, as far as the kept messages tell." />
        </section>
        <section>
          <h2>Readers</h2>
          <Table label="Readers" rows={data.readers} columns={readersOf(name)} id={(one) => one.kind + one.id} empty="No group and no subscription reads this topic, or you may not see them." />
        </section>
      </div>
      <section>
        <h2>Partitions</h2>
        <Table label="Partitions" rows={data.partition_rows} columns={partitionsOf(name)} id={(row) => row.number} />
      </section>
      <section>
        <h2>Settings</h2>
        <Facts
          of={[
            ["Retention by time", data.spec.retention_us ? duration(data.spec.retention_us as number) : "none"],
            ["Retention by size", data.spec.retention_bytes ? bytes(data.spec.retention_bytes as number) : "none"],
            ["Segment", bytes(data.spec.segment_bytes as number)],
            ["Compacted", data.spec.compact ? "yes" : "no"],
            ["Number", String(data.spec.id)],
            ["Identity", String(data.spec.identity)],
          ]}
        />
      </section>
      {open === "publish" ? <PublishDialog start={{ topic: name }} close={() => setOpen("")} /> : null}
      {open === "alter" ? <Alter data={data} close={() => setOpen("")} /> : null}
      {open === "purge" ? (
        <TypedName
          title="Purge this topic"
          name={name}
          label="Purge"
          what={`${count(data.records)} messages are removed for everybody. The topic, its settings and its readers stay. This cannot be undone.`}
          close={() => setOpen("")}
          run={async (typed) => {
            await post("/api/topic/purge", { topic: name, typed });
            note(`topic ${name} was purged`);
            setOpen("");
          }}
        />
      ) : null}
      {open === "delete" ? (
        <TypedName
          title="Delete this topic"
          name={name}
          label="Delete"
          what={`${count(data.records)} messages, ${data.readers.length} readers and their positions are removed for everybody. This cannot be undone.`}
          close={() => setOpen("")}
          run={async (typed) => {
            await post("/api/topic/delete", { topic: name, typed });
            note(`topic ${name} was deleted`);
            go("/topics");
          }}
        />
      ) : null}
    </>
  );
}

function Alter({ data, close }: { data: Answer; close: () => void }) {
  const { fields, bind } = useFields({ durability: "", hours: String(data.retention_us / 3.6e9), size: String(data.retention_bytes) });
  const { durability, hours, size } = fields;
  return (
    <Dialog title="Settings of this topic" close={close}>
      <Action
        label="Change"
        run={async () => {
          await post("/api/topic/alter", { topic: data.name, durability, retention_ms: Math.round((Number(hours) || 0) * 3_600_000), retention_bytes: Math.round(Number(size) || 0) });
          note(`topic ${data.name} was changed`);
          close();
        }}
      >
        <Field label="Durability" hint={`now ${data.durability}`}>
          <select {...bind("durability")}>
            <option value="">as it is</option>
            <option value="fsync">fsync</option>
            <option value="interval">interval</option>
            <option value="os">os</option>
          </select>
        </Field>
        <Field label="Keep for, hours" hint="0: no limit by time">
          <input type="number" min="0" step="any" required {...bind("hours")} />
        </Field>
        <Field label="Keep at most, bytes of each partition" hint="0: no limit by size">
          <input type="number" min="0" required {...bind("size")} />
        </Field>
      </Action>
    </Dialog>
  );
}
