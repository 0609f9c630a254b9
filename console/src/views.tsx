// Keeps views: addresses with names, in this browser, for the person who is logged in. An address itself can be shared with anybody.
import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { me } from "./api";
import { safe } from "./format";
import { place } from "./router";
import { Action, Dialog, Field, note } from "./ui";

const VIEWS_MAX = 100;
const NAME_MAX = 80;

export interface View {
  name: string;
  to: string;
}

export const views = signal<View[]>([]);

function slot(): string {
  return `views ${me.value?.name ?? ""}`;
}

// What is kept was written by this page, but anything may be there: only addresses of this page are taken.
export function loadViews(): void {
  let kept: unknown = [];
  try {
    kept = JSON.parse(localStorage.getItem(slot()) ?? "[]");
  } catch {
    note("the saved views of this browser cannot be read");
  }
  const rows = (Array.isArray(kept) ? kept : []) as Partial<View>[];
  views.value = rows.filter((row): row is View => typeof row?.name === "string" && typeof row.to === "string" && /^\/(?![/\\])/.test(row.to)).slice(0, VIEWS_MAX);
}

function keep(next: View[]): void {
  views.value = next;
  localStorage.setItem(slot(), JSON.stringify(next));
}

export function SavedViews() {
  if (views.value.length === 0) return null;
  const here = place.value.path + location.search;
  return (
    <div role="group" aria-label="Saved views">
      <span class="heading">Saved views</span>
      {views.value.map((view) => (
        <div class="view" key={view.name}>
          <a href={view.to} aria-current={view.to === here ? "page" : undefined}>
            <bdi>{safe(view.name)}</bdi>
          </a>
          <button type="button" class="plain" aria-label={`Forget the view ${safe(view.name)}`} onClick={() => keep(views.value.filter((one) => one !== view))}>
            ✕
          </button>
        </div>
      ))}
    </div>
  );
}

export function SaveView({ title, close }: { title: string; close: () => void }) {
  const to = place.value.path + location.search;
  const [name, setName] = useState(title);
  return (
    <Dialog title="Save this view" close={close}>
      <Action
        label="Save"
        run={async () => {
          if (views.value.length >= VIEWS_MAX) throw new Error(`${VIEWS_MAX} views are saved; forget one first`);
          keep([...views.value.filter((one) => one.name !== name), { name, to }]);
          note(`the view ${name} was saved in this browser`);
          close();
        }}
      >
        <Field label="Name" hint="One of the same name is replaced.">
          <input required autofocus maxLength={NAME_MAX} value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </Field>
        <Field label="Address" hint="Share it: whoever may see this sees the same.">
          <input readOnly value={location.origin + to} onFocus={(event) => event.currentTarget.select()} />
        </Field>
      </Action>
    </Dialog>
  );
}
