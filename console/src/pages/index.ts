// Lists the pages: which address shows what, and what is in the menu.
import type { ComponentType } from "preact";
import { FlowMap } from "./map";
import { Topics } from "./topics";
import { OneTopic } from "./topic";
import { Messages } from "./messages";
import { Message } from "./message";
import { AllReaders } from "./readers";
import { OneGroup } from "./group";
import { Dead } from "./dead";
import { Pipelines } from "./pipelines";
import { Schemas } from "./schemas";
import { Access } from "./access";
import { AuditTrail } from "./audit";
import { Cluster } from "./cluster";
import { Configuration } from "./configuration";
import { Connections } from "./connections";
import { Caches, DelayedMessages, Peers, Queues, Transactions } from "./holdings";

export interface PageRow {
  path: string;
  title: string;
  show: ComponentType;
  under?: string; // the entry of the menu that it belongs to
  admin?: boolean;
  group: string; // of the menu
}

const ROWS: PageRow[] = [
  { group: "Flow", path: "/", title: "Map", show: FlowMap },
  { group: "Flow", path: "/topics", title: "Topics", show: Topics },
  { group: "Flow", path: "/topic", title: "Topic", show: OneTopic, under: "/topics" },
  { group: "Flow", path: "/messages", title: "Messages", show: Messages },
  { group: "Flow", path: "/message", title: "Message", show: Message, under: "/messages" },
  { group: "Flow", path: "/readers", title: "Groups", show: AllReaders },
  { group: "Flow", path: "/group", title: "Group", show: OneGroup, under: "/readers" },
  { group: "Flow", path: "/dead", title: "Dead letters", show: Dead },
  { group: "Holds", path: "/transactions", title: "Transactions", show: Transactions },
  { group: "Holds", path: "/delayed", title: "Delayed", show: DelayedMessages },
  { group: "Holds", path: "/caches", title: "Caches", show: Caches },
  { group: "Holds", path: "/queues", title: "Queues", show: Queues },
  { group: "Holds", path: "/peers", title: "Peers", show: Peers },
  { group: "Data", path: "/schemas", title: "Schemas", show: Schemas },
  { group: "Data", path: "/pipelines", title: "Pipelines", show: Pipelines },
  { group: "Broker", path: "/connections", title: "Connections", show: Connections, admin: true },
  { group: "Broker", path: "/access", title: "Users, rules", show: Access, admin: true },
  { group: "Broker", path: "/audit", title: "Audit", show: AuditTrail, admin: true },
  { group: "Broker", path: "/cluster", title: "Cluster", show: Cluster, admin: true },
  { group: "Broker", path: "/configuration", title: "Configuration", show: Configuration, admin: true },
];

export const PAGES = new Map(ROWS.map((row) => [row.path, row]));
export const MENU = ROWS.filter((row) => !row.under);
