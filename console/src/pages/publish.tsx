// Publishes a message: a new one, or one that was seen, again.
import { useState } from "preact/hooks";
import { post } from "../api";
import { href } from "../router";
import { Action, Dialog, Field, note, Text } from "../ui";

export interface Draft {
  topic: string;
  key?: string;
  key_base64?: string;
  value?: string;
  value_base64?: string;
  headers?: [string, string][];
  partition?: number;
}

interface Placed {
  topic: string;
  partition: number;
  offset: number | string;
}

export function PublishDialog({ start, close, title = "Publish a message" }: { start: Draft; close: () => void; title?: string }) {
  const [topic, setTopic] = useState(start.topic);
  const [key, setKey] = useState(start.key ?? start.key_base64 ?? "");
  const [value, setValue] = useState(start.value ?? start.value_base64 ?? "");
  const [binary, setBinary] = useState(start.value_base64 !== undefined);
  const [binaryKey] = useState(start.key_base64 !== undefined);
  const [headers, setHeaders] = useState((start.headers ?? []).map(([name, text]) => `${name}: ${text}`).join("\n"));
  const [done, setDone] = useState<Placed | null>(null);
  return (
    <Dialog title={title} close={close}>
      <Action
        label="Publish"
        run={async () => {
          const lines = headers.split("\n").filter((line) => line.trim());
          const placed = await post<Placed>("/api/publish", {
            topic,
            ...(key ? (binaryKey ? { key_base64: key } : { key }) : {}),
            ...(binary ? { value_base64: value.trim() } : { value }),
            headers: lines.map((line) => {
              const at = line.indexOf(":");
              return at < 0 ? { name: line.trim(), value: "" } : { name: line.slice(0, at).trim(), value: line.slice(at + 1).trim() };
            }),
            partition: start.partition ?? -1,
          });
          setDone(placed);
          note(`published to ${placed.topic}, partition ${placed.partition}, offset ${placed.offset}`);
        }}
      >
        <Field label="Topic">
          <input required value={topic} spellcheck={false} onInput={(event) => setTopic(event.currentTarget.value)} />
        </Field>
        <Field label={binaryKey ? "Key, base64" : "Key"} hint="Messages of one key go to one partition. Empty: no key">
          <input value={key} spellcheck={false} onInput={(event) => setKey(event.currentTarget.value)} />
        </Field>
        <Field label={binary ? "Value, base64" : "Value"}>
          <textarea rows={8} spellcheck={false} value={value} onInput={(event) => setValue(event.currentTarget.value)} />
        </Field>
        <label class="check">
          <input type="checkbox" checked={binary} onChange={(event) => setBinary(event.currentTarget.checked)} /> The value is base64 of any bytes
        </label>
        <Field label="Headers" hint="One a line, as name: value">
          <textarea rows={2} spellcheck={false} value={headers} onInput={(event) => setHeaders(event.currentTarget.value)} />
        </Field>
        {done ? (
          <p role="status">
            It is at offset{" "}
            <a href={href("/message", { topic: done.topic, partition: done.partition, offset: done.offset })}>{String(done.offset)}</a> of partition {done.partition} of <Text of={done.topic} />.
          </p>
        ) : null}
      </Action>
    </Dialog>
  );
}
