// Shows one message: key, value as text, JSON or bytes, headers, where it came from.
import { useState } from "preact/hooks";
import { useAsk, type Shown, type Whole } from "../api";
import { brief, bytes, bytesOf, hex, pretty, safe, time } from "../format";
import { href, place } from "../router";
import { Facts, Loading, Text } from "../ui";
import { PublishDialog, type Draft } from "./publish";
import type { Row } from "./messages";

interface Answer extends Row {
  start: Whole;
  end: Whole;
  decoded: { schema: string; type: string; fits?: boolean; text?: string; reasons?: string[] } | null;
}

export function Message() {
  const { topic = "", partition = "0", offset = "0" } = place.value.query;
  const { data, error } = useAsk<Answer>("/api/message", { topic, partition, offset });
  const [again, setAgain] = useState(false);
  if (!data) return <Loading error={error} />;
  const near = (by: bigint) => href("/message", { topic, partition, offset: String(BigInt(data.offset) + by) });
  return (
    <>
      <div class="bar">
        <h1>
          <a href={href("/messages", { topic, partition })}>
            <Text of={topic} />
          </a>{" "}
          {partition}-{String(data.offset)}
        </h1>
        {BigInt(data.offset) > BigInt(data.start) ? <a href={near(-1n)}>← Before</a> : null}
        {BigInt(data.offset) + 1n < BigInt(data.end) ? <a href={near(1n)}>After →</a> : null}
        <button type="button" onClick={() => setAgain(true)}>
          Publish again
        </button>
      </div>
      <Facts
        of={[
          ["Time", time(data.time_us)],
          ["From", safe(data.origin)],
          ["Key", data.key ? <span class="mono">{brief(data.key)}</span> : "none"],
          ["Value", data.value ? bytes(data.value.size) : "null"],
          ["Expires", Number(data.expiry_us) ? time(data.expiry_us) : "never"],
        ]}
      />
      <Value of={data.value} decoded={data.decoded} download={href("/api/message/value", { topic, partition, offset })} />
      <section>
        <h2>Headers</h2>
        {data.headers.length === 0 ? <p class="quiet">It has none.</p> : null}
        {data.headers.length ? (
          <table>
            <thead>
              <tr>
                <th>Name</th>
                <th>Value</th>
              </tr>
            </thead>
            <tbody>
              {data.headers.map(([name, text], at) => (
                <tr key={at}>
                  <td>
                    <Text of={name} />
                  </td>
                  <td class="mono break">{text ? <bdi>{brief(text)}</bdi> : "null"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        ) : null}
      </section>
      <Journey topic={topic} partition={partition} offset={offset} />
      {again ? <PublishDialog title="Publish again" start={draft(topic, data)} close={() => setAgain(false)} /> : null}
    </>
  );
}

interface Step {
  what: string;
  time_us: Whole;
  who: string;
  note: string;
  row?: Whole;
  letter?: string;
}

function Journey({ topic, partition, offset }: { topic: string; partition: string; offset: string }) {
  const { data, error } = useAsk<{ steps: Step[]; link: string; whole: boolean; all: boolean }>("/api/journey", { topic, partition, offset });
  return (
    <section>
      <h2>Journey</h2>
      {!data ? (
        <Loading error={error} />
      ) : (
        <>
          <ol class="journey">
            {data.steps.map((step, at) => (
              <li key={at} class={step.what}>
                <b>{step.what}</b> {Number(step.time_us) ? <time>{time(step.time_us)}</time> : null} {step.who ? <Text of={step.who} /> : null} <span class="quiet">{safe(step.note)}</span>
                {step.row !== undefined ? <span class="quiet">{` (row ${step.row} of __events)`}</span> : null}
                {step.letter ? (
                  <>
                    {" "}
                    <a href={href("/dead", { topic })}>{`dead letter ${step.letter}`}</a>
                  </>
                ) : null}
              </li>
            ))}
          </ol>
          {data.link ? (
            <p class="quiet break">
              Link of its batch in the audit chain: <span class="mono">{data.link}</span>
            </p>
          ) : null}
          {data.whole ? null : <p class="quiet">There are more rows of deliveries than were looked at.</p>}
          {data.all ? null : <p class="quiet">Deliveries to others are shown to administrators.</p>}
        </>
      )}
    </section>
  );
}

export function draft(topic: string, row: Row): Draft {
  const value = row.value;
  const made: Draft = { topic, headers: row.headers.map(([name, text]) => [name, text?.text ?? text?.base64 ?? ""]) };
  if (row.key?.text !== undefined) made.key = row.key.text;
  else if (row.key?.base64 !== undefined) made.key_base64 = row.key.base64;
  if (value?.text !== undefined) made.value = value.text;
  else if (value?.base64 !== undefined) made.value_base64 = value.base64;
  return made;
}

function Value({ of, decoded, download }: { of: Shown | null; decoded: Answer["decoded"]; download: string }) {
  const json = of?.text === undefined || of.cut ? null : pretty(of.text);
  const views: [string, string][] = [];
  if (decoded?.text) views.push([`By schema ${decoded.schema}`, decoded.text]);
  if (json !== null) views.push(["JSON", json]);
  if (of?.text !== undefined) views.push(["Text", of.text]);
  if (of) views.push(["Bytes", hex(bytesOf(of))]);
  const [chosen, choose] = useState(0);
  const view = views[Math.min(chosen, views.length - 1)];
  return (
    <section>
      <div class="row">
        <h2>Value</h2>
        <div class="tabs" role="group" aria-label="Show the value as">
          {views.map(([name], at) => (
            <button type="button" key={name} aria-pressed={view === views[at]} onClick={() => choose(at)}>
              {safe(name)}
            </button>
          ))}
        </div>
        {of ? (
          <a href={download} download="">
            Download
          </a>
        ) : null}
        {decoded?.reasons ? <span class="bad">{`does not fit ${safe(decoded.schema)}: ${safe(decoded.reasons.join("; "))}`}</span> : null}
        {decoded?.fits ? <span class="good">{`fits ${safe(decoded.schema)}`}</span> : null}
      </div>
      {view ? (
        <pre class={view[0] === "Bytes" ? "value hex" : "value"} tabindex={0} aria-label="Value">
          {safe(view[1], true)}
        </pre>
      ) : (
        <p class="quiet">The value is null.</p>
      )}
      {of?.cut ? <p class="quiet">{`The first ${bytes(bytesOf(of).length)} of ${bytes(of.size)} are shown; the download has all.`}</p> : null}
    </section>
  );
}
