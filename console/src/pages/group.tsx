// Shows one consumer group: members, assignment, lag; moves it after a preview.
import { useState } from "preact/hooks";
import { post, useLive } from "../api";
import { count, duration, rate, safe } from "../format";
import { Table, type Column } from "../list";
import { go, href, place } from "../router";
import { Action, Bar, Dialog, Facts, Field, Lag, Loading, note, Plot, Text, Topic, TypedName, type Points } from "../ui";

interface Answer {
  topic: string;
  name: string;
  owner: string;
  state: string;
  members: number;
  generation: number;
  lag: number;
  rate: number;
  trend: number;
  member_rows: { name: string; static: boolean; connected: boolean; partitions: number[] }[];
  partitions: { number: number; committed: number; end: number; lag: number; behind_ms: number; member: string }[];
  history: Points;
}
interface Move {
  partition: number;
  at: number;
  then: number;
  again: number;
  skipped: number;
}

type Member = Answer["member_rows"][number];
type Partition = Answer["partitions"][number];

const MEMBERS: Column<Member>[] = [
  { name: "name", title: "Member", show: (one) => <Text of={one.name} /> },
  { name: "state", title: "State", show: (one) => (one.connected ? <span class="good">connected</span> : <span class="warn">away</span>) },
  { name: "static", title: "Static", show: (one) => (one.static ? "yes" : "no") },
  { name: "partitions", title: "Partitions", show: (one) => one.partitions.join(", ") || "none" },
];

const partitionsOf = (topic: string): Column<Partition>[] => [
  { name: "number", title: "Number", show: (one) => <a href={href("/messages", { topic, partition: one.number, offset: one.committed })}>{one.number}</a> },
  { name: "member", title: "Member", show: (one) => (one.member ? <Text of={one.member} /> : <span class="quiet">nobody</span>) },
  { name: "committed", title: "Committed", number: true, show: (one) => count(one.committed) },
  { name: "end", title: "End", number: true, show: (one) => count(one.end) },
  { name: "lag", title: "Lag", number: true, show: (one) => <Lag lag={one.lag} /> },
  { name: "behind", title: "Oldest unread", number: true, show: (one) => (one.behind_ms ? duration(one.behind_ms * 1000) : "") },
];

const MOVES: Column<Move>[] = [
  { name: "partition", title: "Partition", show: (move) => move.partition },
  { name: "at", title: "Now", number: true, show: (move) => count(move.at) },
  { name: "then", title: "Then", number: true, show: (move) => count(move.then) },
  { name: "again", title: "Again", number: true, show: (move) => count(move.again) },
  { name: "skipped", title: "Skipped", number: true, show: (move) => count(move.skipped) },
];

export function OneGroup() {
  const { topic = "", group = "" } = place.value.query;
  const { data, error } = useLive<Answer>("/api/group", { topic, group });
  const [open, setOpen] = useState("");
  if (!data) return <Loading error={error} />;
  return (
    <>
      <Bar title={<>Group <Text of={group} /></>}>
        <button type="button" onClick={() => setOpen("reset")}>
          Move …
        </button>
        <button type="button" class="danger" onClick={() => setOpen("delete")}>
          Delete
        </button>
      </Bar>
      <Facts
        of={[
          ["Topic", <Topic name={topic} />],
          ["State", data.state],
          ["Lag", <Lag lag={data.lag} trend={data.trend} />],
          ["Oldest unread", duration(Math.max(0, ...data.partitions.map((one) => one.behind_ms)) * 1000)],
          ["Reads", `${rate(data.rate)}/s`],
          ["Members", count(data.members)],
          ["Generation", count(data.generation)],
          ["Owner", <Text of={data.owner} />],
        ]}
      />
      <Plot title="Lag" points={data.history} unit="messages" />
      <section>
        <h2>Partitions</h2>
        <Table label="Partitions" rows={data.partitions} columns={partitionsOf(topic)} id={(one) => one.number} />
      </section>
      <section>
        <h2>Members</h2>
        <Table label="Members" rows={data.member_rows} columns={MEMBERS} id={(one) => one.name} empty="Nobody is in this group now." />
      </section>
      {open === "reset" ? <Reset topic={topic} group={group} close={() => setOpen("")} /> : null}
      {open === "delete" ? (
        <TypedName
          title="Delete this group"
          name={group}
          label="Delete"
          what="Its committed offsets are forgotten. Whoever joins it again begins anew."
          close={() => setOpen("")}
          run={async () => {
            await post("/api/group/delete", { topic, group });
            note(`group ${group} was deleted`);
            go("/readers");
          }}
        />
      ) : null}
    </>
  );
}

function Reset({ topic, group, close }: { topic: string; group: string; close: () => void }) {
  const [to, setTo] = useState("earliest");
  const [value, setValue] = useState("");
  const [preview, setPreview] = useState<{ moves: Move[]; members: number } | null>(null);
  const sum = (pick: (move: Move) => number) => (preview?.moves ?? []).reduce((total, move) => total + pick(move), 0);
  return (
    <Dialog title={`Move group ${safe(group)}`} close={close}>
      <Action
        label="Show what would happen"
        run={async () => {
          const number = to === "time" ? new Date(value).getTime() : Number(value);
          setPreview(await post("/api/group/preview", { topic, group, to, value: Number.isFinite(number) ? number : 0 }));
        }}
      >
        <Field label="To">
          <select
            value={to}
            onChange={(event) => {
              setTo(event.currentTarget.value);
              setPreview(null);
            }}
          >
            <option value="earliest">the first message</option>
            <option value="latest">the end</option>
            <option value="offset">an offset</option>
            <option value="time">a time</option>
          </select>
        </Field>
        {to === "offset" ? (
          <Field label="Offset">
            <input type="number" min="0" required value={value} onInput={(event) => setValue(event.currentTarget.value)} />
          </Field>
        ) : null}
        {to === "time" ? (
          <Field label="Time">
            <input type="datetime-local" step="1" required value={value} onInput={(event) => setValue(event.currentTarget.value)} />
          </Field>
        ) : null}
      </Action>
      {preview ? (
        <Action
          label="Move the group"
          danger
          disabled={preview.members > 0}
          run={async () => {
            const done = await post<{ moved: number }>("/api/group/reset", { topic, group, moves: preview.moves.map(({ partition, at, then }) => ({ partition, at, then })) });
            note(`group ${group}: ${done.moved} partitions were moved`);
            close();
          }}
        >
          <p role="status">
            {count(sum((move) => move.again))} messages would be read again, {count(sum((move) => move.skipped))} would be skipped.
            {preview.members ? ` The group has ${preview.members} members: stop them first.` : ""}
          </p>
          <Table label="Moves" rows={preview.moves} columns={MOVES} id={(move) => move.partition} />
        </Action>
      ) : null}
    </Dialog>
  );
}
