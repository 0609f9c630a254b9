// Shows the audit, and verifies that the log was not changed.
import { useState } from "preact/hooks";
import { stream, type Refusal } from "../api";
import { bytes, count, safe, time } from "../format";
import { LongList, type Column } from "../list";
import { place, setQuery } from "../router";
import { Dialog, Failure, Text, Topic } from "../ui";

interface Event {
  id: string;
  ts_ms: number;
  type: string;
  user: string;
  client_ip: string;
  resource: string;
  action: string;
  result: string;
  details: { key: string; value: string }[];
}

const EVENTS: Column<Event>[] = [
  { name: "time", title: "Time", width: "180px", show: (row) => time(row.ts_ms * 1000) },
  { name: "type", title: "Event", width: "130px", show: (row) => row.type },
  { name: "user", title: "Who", width: "minmax(90px, 1fr)", show: (row) => <Text of={row.user} /> },
  { name: "resource", title: "What", width: "minmax(120px, 1.5fr)", show: (row) => <Text of={row.resource} /> },
  { name: "action", title: "Action", width: "120px", show: (row) => safe(row.action) },
  { name: "result", title: "Result", width: "80px", show: (row) => <span class={row.result === "success" ? "good" : "bad"}>{row.result}</span> },
  { name: "from", title: "From", width: "150px", show: (row) => <span class="mono">{safe(row.client_ip)}</span> },
  { name: "details", title: "Details", width: "minmax(120px, 2fr)", show: (row) => safe(row.details.map((one) => `${one.key}=${one.value}`).join(" ")) },
];

export function AuditTrail() {
  const { query } = place.value;
  const [verifying, setVerifying] = useState(false);
  return (
    <>
      <div class="bar">
        <h1>Audit</h1>
        <input type="search" aria-label="Search the audit" placeholder="Any word of an event" maxLength={200} value={query.search ?? ""} onInput={(event) => setQuery({ search: event.currentTarget.value })} />
        <label>
          Result{" "}
          <select value={query.result ?? ""} onChange={(event) => setQuery({ result: event.currentTarget.value })}>
            <option value="">any</option>
            <option value="success">success</option>
            <option value="denied">denied</option>
            <option value="failure">failure</option>
          </select>
        </label>
        <button type="button" onClick={() => setVerifying(true)}>
          Verify the chain …
        </button>
      </div>
      <LongList path="/api/audit" fields={{ search: query.search, result: query.result }} columns={EVENTS} label="Audit" empty="No event matches." />
      {verifying ? <Verify close={() => setVerifying(false)} /> : null}
    </>
  );
}

interface Progress {
  partitions: number;
  of: number;
  records: number;
  bytes: number;
  broken: number;
}
interface Verdict {
  status: "sound" | "broken" | "cannot be checked";
  records?: number;
  bytes?: number;
  partitions?: number;
  chained?: number;
  anchor?: string | null;
  cannot?: string | null;
  broken?: { file: string; position: number; first_offset: number; next_offset: number; kind: string; what: string } | null;
  broken_partitions?: { topic: string; partition: number }[];
}

function Verify({ close }: { close: () => void }) {
  const [seen, setSeen] = useState<Progress | null>(null);
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const [error, setError] = useState<Refusal | null>(null);
  const [stop, setStop] = useState<(() => void) | null>(null);
  const begin = () => {
    setVerdict(null);
    setSeen(null);
    setError(null);
    const end = () => setStop(null);
    const ended = stream("/api/audit/verify", {}, { progress: setSeen, verdict: setVerdict, ended: end }, (refusal) => {
      setError(refusal);
      end();
    });
    setStop(() => () => {
      ended();
      end();
    });
  };
  const leave = () => {
    stop?.();
    close();
  };
  return (
    <Dialog title="Verify the audit chain" close={leave}>
      <p>Follows the links of every batch in every file of the log and compares them with the anchors. It runs beside the broker, at a low priority, and ends with this dialog.</p>
      <Failure error={error} />
      <div role="status">
        {seen ? (
          <p>
            <progress max={Math.max(seen.of, 1)} value={seen.partitions} aria-label="Partitions followed" /> {`${count(seen.partitions)} of ${count(seen.of)} partitions, ${count(seen.records)} records, ${bytes(seen.bytes)}`}
          </p>
        ) : stop ? (
          <p>Starting …</p>
        ) : null}
        {verdict ? <Outcome of={verdict} /> : null}
      </div>
      <div class="row end">
        {stop ? (
          <button type="button" onClick={stop}>
            Stop
          </button>
        ) : (
          <button type="button" class="primary" onClick={begin}>
            {verdict ? "Verify again" : "Verify"}
          </button>
        )}
      </div>
    </Dialog>
  );
}

function Outcome({ of }: { of: Verdict }) {
  const state = of.status === "sound" ? "good" : "bad";
  return (
    <>
      <p>
        <b class={state}>{of.status}</b>
        {of.records !== undefined ? `: ${count(of.records)} records in ${count(of.chained ?? 0)} chained partitions` : ""}
        {of.cannot ? `: ${safe(of.cannot)}` : ""}
      </p>
      {of.broken ? (
        <p class="break">
          {`${of.broken.kind}: offsets ${of.broken.first_offset} to ${of.broken.next_offset - 1} in ${safe(of.broken.file)}: ${safe(of.broken.what)}`}
        </p>
      ) : null}
      {of.broken_partitions?.length ? (
        <ul>
          {of.broken_partitions.map((one) => (
            <li key={`${one.topic} ${one.partition}`}>
              <Topic name={one.topic} /> {one.partition}
            </li>
          ))}
        </ul>
      ) : null}
      {of.anchor ? (
        <p class="quiet break">
          The anchors end at <span class="mono">{safe(of.anchor)}</span>. Keep this elsewhere: compare it with <code>quintet audit verify --head</code>.
        </p>
      ) : null}
    </>
  );
}
