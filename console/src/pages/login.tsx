// Logs a person in with the broker's own users.
import { useEffect, useState } from "preact/hooks";
import { get, me, post, type Me } from "../api";
import { go, place } from "../router";
import { Action, Field } from "../ui";

export function Login() {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const next = place.value.query.next ?? "/";
  const on = async () => {
    const found = await get<Me | null>("/api/me");
    if (!found) return;
    me.value = found;
    go(next.startsWith("/") && !next.startsWith("//") ? next : "/", true);
  };
  useEffect(() => {
    on().catch(() => undefined);
  }, []);
  return (
    <main class="login" id="main">
      <img src="/static/icon.svg" alt="" width="48" height="48" />
      <h1>Quintet console</h1>
      <Action
        label="Log in"
        run={async () => {
          await post("/api/login", { name, password });
          await on();
        }}
      >
        <Field label="User">
          <input name="name" autocomplete="username" required autofocus value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </Field>
        <Field label="Password">
          <input name="password" type="password" autocomplete="current-password" required value={password} onInput={(event) => setPassword(event.currentTarget.value)} />
        </Field>
      </Action>
      <p class="quiet">A user of this broker. What you see and do here is what the same user may do on the wire.</p>
    </main>
  );
}
