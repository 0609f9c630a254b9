//! Load over many connections, by one thread and epoll.
//!
//! On a machine with few cores a generator in Python costs more per round trip than the servers it measures. This one
//! costs one read, one write and a share of one epoll call, the same for every protocol.
//!
//!     rounds   publishes in a closed loop (rounds.rs)
//!     schedule publishes at a fixed rate (schedule.rs)
//!     fetch    reads through FlyMQ (fetch.rs)
//!     drain    reads a plain stream to its end (fetch.rs)
//!     floor    is no load but a server, the least that a durable answer costs (floor.rs)

mod amqp;
mod fetch;
mod floor;
mod fly;
mod histogram;
mod kafka;
mod link;
mod poll;
mod rounds;
mod schedule;
mod script;
mod wire;

use histogram::Histogram;
use script::Script;
use std::process::ExitCode;
use wire::{Protocol, Shape};

const CONNECTIONS_MAX: usize = 10_000;
const ROUND_BYTES_MAX: usize = 16 * 1024 * 1024;
const TOPICS_MAX: usize = 100_000; // as many as five digits name
const RATE_MAX: f64 = 1e7;
const USAGE: &str = "usage: loadgen [--what rounds|schedule|fetch|drain|floor] \
    --proto blipmq|redis|jetstream|nats|flymq|kafka|amqp|script \
    --addr HOST:PORT --connections C --in-flight F --size N --seconds S [--warmup S] [--rounds N] [--topic NAME] \
    [--topics T --run R] [--partitions P] [--held N] [--once 1] [--save FILE] \
    [--rate R] [--file FILE --exchanges N:HEX,...] [options of a script: see script.rs]";

struct Wanted {
    what: String,
    protocol: Protocol,
    address: String,
    connections: usize,
    shape: Shape,
    turning: bool, // several topics were asked for, be it only one of them: their names have numbers
    seconds: f64,
    warmup: f64,
    rounds: u64, // of each connection, instead of a time
    rate: f64,   // messages a second of a schedule
    held: usize, // messages in each partition that is read
    once: bool,
    save: Option<String>,
    file: String,      // of a floor
    exchanges: String, // of a floor
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} {value:?} is no number it can take. {USAGE}"))
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Wanted, String> {
    let shape = Shape { topic: "bench.durable".into(), size: 128, messages: 1, partitions: 1, topics: 1, run: 0 };
    let mut wanted = Wanted {
        what: "rounds".into(),
        protocol: Protocol::Blipmq,
        address: String::new(),
        connections: 1,
        shape,
        turning: false,
        seconds: 1.0,
        warmup: 0.0,
        rounds: 0,
        rate: 0.0,
        held: 0,
        once: false,
        save: None,
        file: String::new(),
        exchanges: String::new(),
    };
    let (mut script, mut scripted) = (Script::default(), false);
    while let Some(name) = words.next() {
        let value = words.next().ok_or_else(|| format!("{name} has no value. {USAGE}"))?;
        match name.as_str() {
            "--what" => wanted.what = value,
            "--proto" if value == "script" => scripted = true,
            "--proto" => {
                wanted.protocol = Protocol::named(&value).ok_or_else(|| format!("no protocol {value:?}. {USAGE}"))?;
            }
            "--addr" => wanted.address = value,
            "--connections" => wanted.connections = number(&name, &value)?,
            "--in-flight" => wanted.shape.messages = number(&name, &value)?,
            "--size" => wanted.shape.size = number(&name, &value)?,
            "--partitions" => wanted.shape.partitions = number(&name, &value)?,
            "--topics" => (wanted.shape.topics, wanted.turning) = (number(&name, &value)?, true),
            "--run" => wanted.shape.run = number(&name, &value)?,
            "--seconds" => wanted.seconds = number(&name, &value)?,
            "--warmup" => wanted.warmup = number(&name, &value)?,
            "--rounds" => wanted.rounds = number(&name, &value)?,
            "--held" => wanted.held = number(&name, &value)?,
            "--once" => wanted.once = value == "1",
            "--save" => wanted.save = Some(value),
            "--rate" => wanted.rate = number(&name, &value)?,
            "--file" => wanted.file = value,
            "--exchanges" => wanted.exchanges = value,
            "--topic" => wanted.shape.topic = value,
            _ => match script.option(&name, &value) {
                Some(true) => {}
                Some(false) => return Err(format!("{name} is not known. {USAGE}")),
                None => return Err(format!("{name} {value:?} is nothing a script can take. {USAGE}")),
            },
        }
    }
    if scripted {
        if !script.sane() || wanted.shape.messages != 1 {
            return Err(format!("the script lacks a part, or has more than one message a round. {USAGE}"));
        }
        wanted.protocol = Protocol::Script(Box::leak(Box::new(script)));
    }
    checked(wanted)
}

fn checked(wanted: Wanted) -> Result<Wanted, String> {
    let shape = &wanted.shape;
    let sane = (1..=CONNECTIONS_MAX).contains(&wanted.connections)
        && (1..=TOPICS_MAX).contains(&shape.topics)
        && (1..=TOPICS_MAX).contains(&shape.partitions)
        && shape.messages > 0
        && shape.messages.saturating_mul(shape.size.max(1)) <= ROUND_BYTES_MAX
        && (0.0..1e6).contains(&wanted.warmup)
        && wanted.seconds > 0.0
        && wanted.seconds < 1e6
        && (wanted.what != "schedule" || wanted.rate > 0.0 && wanted.rate <= RATE_MAX)
        && shape.topic.len() <= usize::from(u16::MAX);
    let reads = wanted.what != "fetch"
        || wanted.protocol == Protocol::Flymq
            && shape.run > 0
            && wanted.held >= shape.run
            && wanted.held.is_multiple_of(shape.run);
    let turns = wanted.turning == (shape.run > 0) || wanted.what == "fetch";
    if wanted.address.is_empty() || !sane || !reads || !turns || (wanted.turning && wanted.protocol != Protocol::Flymq)
    {
        return Err(format!("an argument is missing or out of range. {USAGE}"));
    }
    Ok(wanted)
}

/// What a run counted. A failure leaves the counts so far.
struct Counted {
    operations: u64,
    total: u64,
    bytes: u64,
    seconds: f64,
    latencies: Histogram,
}

fn floor(wanted: &Wanted) -> Result<(), String> {
    let exchanges = floor::exchanges(&wanted.exchanges).ok_or(format!("--exchanges cannot be read. {USAGE}"))?;
    floor::serve(&wanted.address, &wanted.file, &exchanges).map_err(|error| format!("the floor failed: {error}"))
}

fn main() -> ExitCode {
    let wanted = match arguments(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(why) => {
            eprintln!("loadgen: {why}");
            return ExitCode::from(2);
        }
    };
    let mut counted = Counted { operations: 0, total: 0, bytes: 0, seconds: 0.0, latencies: Histogram::new() };
    let outcome = match wanted.what.as_str() {
        "rounds" => rounds::run(&wanted, &mut counted),
        "schedule" => schedule::run(&wanted, &mut counted),
        "floor" => floor(&wanted),
        "fetch" => fetch::run(&wanted, &mut counted),
        "drain" => fetch::drain(&wanted, &mut counted),
        other => Err(format!("--what {other:?} is not known. {USAGE}")),
    };
    println!(
        "{{\"operations\":{},\"seconds\":{},\"p50_us\":{:.1},\"p99_us\":{:.1},\"p999_us\":{:.1},\"errors\":{},\"total\":{},\"bytes\":{}}}",
        counted.operations,
        counted.seconds,
        counted.latencies.at_us(0.5),
        counted.latencies.at_us(0.99),
        counted.latencies.at_us(0.999),
        u8::from(outcome.is_err()),
        counted.total,
        counted.bytes,
    );
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("loadgen: {why}");
            ExitCode::FAILURE
        }
    }
}
