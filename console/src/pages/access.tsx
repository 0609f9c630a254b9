// Shows users, access rules, roles and quotas, changes them, and says why somebody may do something.
import { useEffect, useState } from "preact/hooks";
import { get, post } from "../api";
import { bytes, count, duration, safe, time } from "../format";
import { LongList, type Column } from "../list";
import { href, place, setQuery } from "../router";
import { Action, Bar, Dialog, Field, Lines, note, Text, TypedName, useFields, words } from "../ui";

interface User {
  name: string;
  roles: string[];
  permissions: string[];
  enabled: boolean;
  created_s: number;
  me: boolean;
}
interface Rule {
  pattern: string;
  public: boolean;
  users: string[];
  roles: string[];
}
interface Role {
  name: string;
  read: string[];
  write: string[];
  admin: string[];
  description: string;
}

interface Bounds {
  publish_bytes_per_second_max: number;
  read_bytes_per_second_max: number;
  connections_max: number;
  topics_max: number;
  storage_bytes_max: number;
}
interface Quota {
  kind: "user" | "tenant";
  name: string;
  tenant: string;
  set: boolean;
  bounds: Bounds;
  connections: number;
  topics: number;
  storage_bytes: number;
  pauses: number;
  paused_us: number;
  refused: number;
  held: boolean;
}

const TABS = [
  ["", "Users"],
  ["rules", "Access rules"],
  ["roles", "Roles"],
  ["quotas", "Quotas"],
  ["why", "May somebody, and why?"],
] as const;

export function Access() {
  const { query } = place.value;
  const tab = query.tab ?? "";
  return (
    <>
      <Bar title="Users and rules" filter={tab === "why" ? undefined : "Part of a name or role"} label="Filter users and rules">
        <span class="tabs" role="group" aria-label="What to show">
          {TABS.map(([name, title]) => (
            <a key={name} class="button" href={href("/access", { tab: name })} aria-current={tab === name ? "true" : undefined}>
              {title}
            </a>
          ))}
        </span>
      </Bar>
      {tab === "rules" ? <Rules filter={query.filter} /> : tab === "roles" ? <Roles filter={query.filter} /> : tab === "quotas" ? <Quotas filter={query.filter} /> : tab === "why" ? <Why /> : <Users filter={query.filter} />}
    </>
  );
}

// -- users -----------------------------------------------------------------------------------------------------------

function Users({ filter }: { filter?: string }) {
  const [turn, setTurn] = useState(0);
  const [open, setOpen] = useState<{ what: "new" | "change" | "delete"; user?: User } | null>(null);
  const done = (text?: string) => {
    if (text) note(text);
    setOpen(null);
    setTurn((before) => before + 1);
  };
  const columns: Column<User>[] = [
    { name: "name", title: "Name", width: "minmax(140px, 2fr)", show: (row) => <Text of={row.name} /> },
    { name: "roles", title: "Roles", width: "minmax(120px, 1fr)", show: (row) => <Lines of={row.roles} /> },
    { name: "may", title: "May", width: "minmax(130px, 1fr)", show: (row) => <Lines of={row.permissions} /> },
    { name: "state", title: "State", width: "90px", show: (row) => (row.enabled ? "enabled" : <span class="bad">disabled</span>) },
    { name: "made", title: "Made", width: "150px", show: (row) => time(row.created_s * 1e6).slice(0, 16) },
    {
      name: "change",
      title: "Change",
      width: "170px",
      show: (row) => (
        <>
          <button type="button" class="plain" aria-label={`Change ${safe(row.name)}`} onClick={() => setOpen({ what: "change", user: row })}>
            Change …
          </button>
          {row.me ? null : (
            <button type="button" class="plain" aria-label={`Delete ${safe(row.name)}`} onClick={() => setOpen({ what: "delete", user: row })}>
              Delete …
            </button>
          )}
        </>
      ),
    },
  ];
  return (
    <>
      <div class="row">
        <button type="button" onClick={() => setOpen({ what: "new" })}>
          New user …
        </button>
        <span class="quiet">A user of the configuration is as the file says after every start.</span>
      </div>
      <LongList path="/api/users" fields={{ filter }} columns={columns} label="Users" empty="No user has that in a name or role." turn={turn} />
      {open?.what === "new" ? <UserForm close={done} /> : null}
      {open?.what === "change" ? <UserForm user={open.user} close={done} /> : null}
      {open?.what === "delete" && open.user ? (
        <TypedName
          title="Delete this user"
          name={open.user.name}
          label="Delete"
          what="It cannot log in any more, its sessions and API keys end. What it owned stays with its name."
          close={() => setOpen(null)}
          run={async (typed) => {
            await post("/api/user/delete", { name: open.user!.name, typed });
            done(`user ${open.user!.name} was deleted`);
          }}
        />
      ) : null}
    </>
  );
}

function UserForm({ user, close }: { user?: User; close: (done?: string) => void }) {
  const { fields, bind } = useFields({ name: user?.name ?? "", password: "", roles: (user?.roles ?? []).join(" ") });
  const [enabled, setEnabled] = useState(user?.enabled ?? true);
  return (
    <Dialog title={user ? `User ${safe(user.name)}` : "New user"} close={() => close()}>
      <Action
        label={user ? "Change" : "Create"}
        run={async () => {
          const roles = words(fields.roles);
          if (user) await post("/api/user/update", { name: user.name, roles, enabled, ...(fields.password ? { password: fields.password } : {}) });
          else await post("/api/user/create", { name: fields.name, password: fields.password, roles });
          close(`user ${fields.name} was ${user ? "changed" : "made"}`);
        }}
      >
        {user ? null : (
          <Field label="Name">
            <input required autofocus autocomplete="off" spellcheck={false} {...bind("name")} />
          </Field>
        )}
        <Field label="Password" hint={user ? "Empty: it stays as it is. A new one ends the sessions of this user." : undefined}>
          <input type="password" autocomplete="new-password" required={!user} {...bind("password")} />
        </Field>
        <Field label="Roles" hint="Separated by blanks: admin, producer, consumer, guest, or a role of the configuration">
          <input spellcheck={false} {...bind("roles")} />
        </Field>
        {user ? (
          <label class="check">
            <input type="checkbox" checked={enabled} onChange={(event) => setEnabled(event.currentTarget.checked)} /> may log in
          </label>
        ) : null}
      </Action>
    </Dialog>
  );
}

export function OwnPassword({ close }: { close: () => void }) {
  const { fields, bind } = useFields({ old: "", fresh: "" });
  return (
    <Dialog title="Your password" close={close}>
      <Action
        label="Change"
        run={async () => {
          await post("/api/password", { old: fields.old, new: fields.fresh });
          note("the password was changed; log in again");
          close();
        }}
      >
        <Field label="Old password">
          <input type="password" required autofocus autocomplete="current-password" {...bind("old")} />
        </Field>
        <Field label="New password" hint="All your sessions end, this one too.">
          <input type="password" required autocomplete="new-password" {...bind("fresh")} />
        </Field>
      </Action>
    </Dialog>
  );
}

// -- rules and roles -------------------------------------------------------------------------------------------------

function Rules({ filter }: { filter?: string }) {
  const [turn, setTurn] = useState(0);
  const [open, setOpen] = useState<{ what: "set" | "delete"; rule?: Rule } | null>(null);
  const done = (text: string) => {
    note(text);
    setOpen(null);
    setTurn((before) => before + 1);
  };
  const columns: Column<Rule>[] = [
    { name: "pattern", title: "Topic, prefix or group", width: "minmax(160px, 2fr)", show: (row) => <Text of={row.pattern} /> },
    { name: "public", title: "Public", width: "80px", show: (row) => (row.public ? "yes" : "no") },
    { name: "users", title: "Users", width: "minmax(120px, 2fr)", show: (row) => <Lines of={row.users} /> },
    { name: "roles", title: "Roles", width: "minmax(120px, 2fr)", show: (row) => <Lines of={row.roles} /> },
    {
      name: "change",
      title: "Change",
      width: "170px",
      show: (row) => (
        <>
          <button type="button" class="plain" aria-label={`Change the rule of ${safe(row.pattern)}`} onClick={() => setOpen({ what: "set", rule: row })}>
            Change …
          </button>
          <button type="button" class="plain" aria-label={`Delete the rule of ${safe(row.pattern)}`} onClick={() => setOpen({ what: "delete", rule: row })}>
            Delete …
          </button>
        </>
      ),
    },
  ];
  return (
    <>
      <div class="row">
        <button type="button" onClick={() => setOpen({ what: "set" })}>
          New rule …
        </button>
        <span class="quiet">A rule narrows what roles allow; the longest pattern that fits a name decides.</span>
      </div>
      <LongList path="/api/rules" fields={{ filter }} columns={columns} label="Access rules" empty="There are none: roles alone decide." turn={turn} />
      {open?.what === "set" ? <RuleForm rule={open.rule} done={done} close={() => setOpen(null)} /> : null}
      {open?.what === "delete" && open.rule ? (
        <TypedName
          title="Delete this rule"
          name={open.rule.pattern}
          label="Delete"
          what="What it kept apart is for the next shorter rule to decide, or for roles alone."
          close={() => setOpen(null)}
          run={async (typed) => {
            await post("/api/rule/delete", { name: open.rule!.pattern, typed });
            done(`the rule of ${open.rule!.pattern} was deleted`);
          }}
        />
      ) : null}
    </>
  );
}

function RuleForm({ rule, done, close }: { rule?: Rule; done: (text: string) => void; close: () => void }) {
  const { fields, bind } = useFields({ name: rule?.pattern ?? "", users: (rule?.users ?? []).join(" "), roles: (rule?.roles ?? []).join(" ") });
  const [open, setOpen] = useState(rule?.public ?? false);
  return (
    <Dialog title={rule ? "Change this rule" : "New rule"} close={close}>
      <Action
        label="Set"
        run={async () => {
          await post("/api/rule/set", { name: fields.name, public: open, users: words(fields.users), roles: words(fields.roles) });
          done(`the rule of ${fields.name} was set`);
        }}
      >
        <Field label="Topic, prefix or group" hint="orders, orders-*, or group:NAME">
          <input required autofocus={!rule} readOnly={!!rule} spellcheck={false} {...bind("name")} />
        </Field>
        <Field label="Users" hint="Separated by blanks">
          <input spellcheck={false} {...bind("users")} />
        </Field>
        <Field label="Roles" hint="Separated by blanks">
          <input spellcheck={false} {...bind("roles")} />
        </Field>
        <label class="check">
          <input type="checkbox" checked={open} onChange={(event) => setOpen(event.currentTarget.checked)} /> for everybody whose roles allow it
        </label>
      </Action>
    </Dialog>
  );
}

const ROLES: Column<Role>[] = [
  { name: "name", title: "Role", width: "minmax(120px, 1fr)", show: (row) => <Text of={row.name} /> },
  { name: "read", title: "Reads", width: "minmax(100px, 1fr)", show: (row) => <Lines of={row.read} /> },
  { name: "write", title: "Writes", width: "minmax(100px, 1fr)", show: (row) => <Lines of={row.write} /> },
  { name: "admin", title: "Administers", width: "minmax(100px, 1fr)", show: (row) => <Lines of={row.admin} /> },
  { name: "about", title: "About", width: "minmax(160px, 3fr)", show: (row) => safe(row.description) },
];

function Roles({ filter }: { filter?: string }) {
  return <LongList path="/api/roles" fields={{ filter }} columns={ROLES} label="Roles" empty="No role has that in its name." />;
}

// -- quotas ----------------------------------------------------------------------------------------------------------

const BOUNDS: [keyof Bounds, string][] = [
  ["publish_bytes_per_second_max", "Published, bytes a second"],
  ["read_bytes_per_second_max", "Read, bytes a second"],
  ["connections_max", "Connections"],
  ["topics_max", "Topics"],
  ["storage_bytes_max", "Storage, bytes"],
];

const used = (has: string, bound: number, show: (value: number) => string) => (bound ? `${has} of ${show(bound)}` : has);
const pace = (bound: number) => (bound ? `${bytes(bound)}/s` : "–");

function Quotas({ filter }: { filter?: string }) {
  const [turn, setTurn] = useState(0);
  const [open, setOpen] = useState<{ quota?: Quota } | null>(null);
  const done = (text: string) => {
    note(text);
    setOpen(null);
    setTurn((before) => before + 1);
  };
  const columns: Column<Quota>[] = [
    { name: "kind", title: "Of a", width: "58px", show: (row) => row.kind },
    {
      name: "name",
      title: "Name",
      width: "minmax(100px, 2fr)",
      show: (row) => (
        <>
          <Text of={row.name} /> {row.held ? <span class="bad">held back</span> : null}
        </>
      ),
    },
    { name: "publish", title: "Published", width: "86px", number: true, show: (row) => pace(row.bounds.publish_bytes_per_second_max) },
    { name: "read", title: "Read", width: "86px", number: true, show: (row) => pace(row.bounds.read_bytes_per_second_max) },
    { name: "connections", title: "Connections", width: "96px", number: true, show: (row) => used(count(row.connections), row.bounds.connections_max, count) },
    { name: "topics", title: "Topics", width: "76px", number: true, show: (row) => used(count(row.topics), row.bounds.topics_max, count) },
    { name: "storage", title: "Storage", width: "140px", number: true, show: (row) => used(bytes(row.storage_bytes), row.bounds.storage_bytes_max, bytes) },
    { name: "paused", title: "Waited", width: "66px", number: true, show: (row) => duration(row.paused_us) },
    { name: "refused", title: "Refused", width: "66px", number: true, show: (row) => count(row.refused) },
    {
      name: "change",
      title: "Change",
      width: "140px",
      show: (row) => (
        <>
          <button type="button" class="plain" aria-label={`Change the quota of ${row.kind} ${safe(row.name)}`} onClick={() => setOpen({ quota: row })}>
            Change …
          </button>
          {row.set ? (
            <button
              type="button"
              class="plain"
              aria-label={`Clear the quota of ${row.kind} ${safe(row.name)}`}
              onClick={() =>
                post("/api/quota/clear", { kind: row.kind, name: row.name })
                  .then(() => done(`the quota of ${row.kind} ${row.name} was cleared`))
                  .catch((error) => note(error.message))
              }
            >
              Clear
            </button>
          ) : null}
        </>
      ),
    },
  ];
  return (
    <>
      <div class="row">
        <button type="button" onClick={() => setOpen({})}>
          New quota …
        </button>
        <span class="quiet">Above a rate a client waits and nothing is refused; above the others one more is refused.</span>
      </div>
      <LongList path="/api/quotas" fields={{ filter }} columns={columns} label="Quotas" empty="Nobody has one." turn={turn} />
      {open ? <QuotaForm quota={open.quota} done={done} close={() => setOpen(null)} /> : null}
    </>
  );
}

function QuotaForm({ quota, done, close }: { quota?: Quota; done: (text: string) => void; close: () => void }) {
  const given = Object.fromEntries(BOUNDS.map(([bound]) => [bound, quota ? String(quota.bounds[bound]) : ""])) as Record<keyof Bounds, string>;
  const { fields, bind } = useFields({ kind: quota?.kind ?? "user", name: quota?.name ?? "", ...given });
  return (
    <Dialog title={quota ? "Change this quota" : "New quota"} close={close}>
      <Action
        label="Set"
        run={async () => {
          const bounds = Object.fromEntries(BOUNDS.filter(([bound]) => fields[bound] !== given[bound]).map(([bound]) => [bound, fields[bound] === "" ? -1 : Number(fields[bound])]));
          await post("/api/quota/set", { kind: fields.kind, name: fields.name, ...bounds });
          done(`the quota of ${fields.kind} ${fields.name} was set`);
        }}
      >
        <Field label="Of a">
          <select value={fields.kind} disabled={!!quota} onChange={bind("kind").onInput}>
            <option value="user">user</option>
            <option value="tenant">tenant</option>
          </select>
        </Field>
        <Field label="Name">
          <input required autofocus={!quota} readOnly={!!quota} spellcheck={false} {...bind("name")} />
        </Field>
        {BOUNDS.map(([bound, title]) => (
          <Field key={bound} label={title} hint="0: no limit; empty: as the configuration says">
            <input type="number" min="0" step="1" inputmode="numeric" {...bind(bound)} />
          </Field>
        ))}
      </Action>
    </Dialog>
  );
}

// -- why -------------------------------------------------------------------------------------------------------------

interface Answer {
  allowed: boolean;
  kind: string;
  name: string;
  steps: { topic: string; rule: string; outcome: string; why: string }[];
}

function Why() {
  const { query } = place.value;
  const { fields, bind } = useFields({ who: query.who ?? "", action: query.action ?? "subscribe", resource: query.topic ?? "" });
  const [answer, setAnswer] = useState<Answer | null>(null);
  const ask = async () => {
    setAnswer(null);
    setAnswer(await get<Answer>("/api/explain", { who: fields.who, action: fields.action, resource: fields.resource }));
  };
  useEffect(() => {
    if (query.who && query.topic) ask().catch((error) => note(error.message)); // an address that somebody shared
  }, []);
  return (
    <section>
      <Action
        label="Ask"
        run={async () => {
          setQuery({ who: fields.who, action: fields.action, topic: fields.resource });
          await ask();
        }}
      >
        <div class="row">
          <Field label="Who" hint="a user, key:NAME, or subject:NAME">
            <input required spellcheck={false} {...bind("who")} />
          </Field>
          <Field label="Action" hint="to do with the topic">
            <select value={fields.action} onChange={bind("action").onInput}>
              <option value="publish">publish</option>
              <option value="subscribe">subscribe</option>
              <option value="admin">administer</option>
            </select>
          </Field>
          <Field label="Topic" hint="any name, there or not">
            <input required spellcheck={false} {...bind("resource")} />
          </Field>
        </div>
      </Action>
      {answer ? (
        <div role="status">
          <p>
            <b class={answer.allowed ? "good" : "bad"}>{answer.allowed ? "Yes" : "No"}</b>: the {answer.kind} <Text of={answer.name} /> {answer.allowed ? "may" : "may not"}.
          </p>
          <ol>
            {answer.steps.map((step, at) => (
              <li key={at}>
                <b>{step.rule}</b>: {safe(step.why)} <span class={step.outcome === "yes" ? "good" : step.outcome === "no" ? "bad" : "quiet"}>{step.outcome === "next" ? "the next row decides" : step.outcome}</span>
              </li>
            ))}
          </ol>
        </div>
      ) : null}
    </section>
  );
}
