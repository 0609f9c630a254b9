//! A closed loop of durable publishes over many connections, by one thread and epoll.
//!
//! On a machine with few cores a generator in Python costs more per round trip than the servers it measures. This one
//! costs one read, one write and a share of one epoll call, the same for every protocol. A round is F messages in one
//! write; the next round of a connection starts when all answers of the last one came. Operations are the messages
//! answered between the end of the warm-up and the end of the run; latencies are those of rounds that ended there.
//! `total` counts all that were acknowledged, warm-up and end included, so that it can be compared with what the server
//! has.

mod histogram;
mod poll;
mod wire;

use histogram::Histogram;
use poll::{Poll, READABLE, WRITABLE};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use wire::{Answers, Protocol};

const STALL_MS: i32 = 30_000; // a server that says nothing for this long while something is owed has failed the run
const READ_BYTES: usize = 64 * 1024;
const CONNECTIONS_MAX: usize = 10_000;
const ROUND_BYTES_MAX: usize = 16 * 1024 * 1024;
const USAGE: &str = "usage: loadgen --proto blipmq|redis|jetstream|nats --addr HOST:PORT --connections C --in-flight F \
    --size N --seconds S [--warmup S] [--topic NAME]";

struct Wanted {
    protocol: Protocol,
    address: String,
    connections: usize,
    in_flight: usize,
    size: usize,
    seconds: f64,
    warmup: f64,
    topic: String,
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name} {value:?} is no number it can take. {USAGE}"))
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        protocol: Protocol::Blipmq,
        address: String::new(),
        connections: 1,
        in_flight: 1,
        size: 128,
        seconds: 1.0,
        warmup: 0.0,
        topic: "bench.durable".into(),
    };
    while let Some(name) = words.next() {
        let value = words.next().ok_or_else(|| format!("{name} has no value. {USAGE}"))?;
        match name.as_str() {
            "--proto" => {
                wanted.protocol = Protocol::named(&value).ok_or_else(|| format!("no protocol {value:?}. {USAGE}"))?;
            }
            "--addr" => wanted.address = value,
            "--connections" => wanted.connections = number(&name, &value)?,
            "--in-flight" => wanted.in_flight = number(&name, &value)?,
            "--size" => wanted.size = number(&name, &value)?,
            "--seconds" => wanted.seconds = number(&name, &value)?,
            "--warmup" => wanted.warmup = number(&name, &value)?,
            "--topic" => wanted.topic = value,
            _ => return Err(format!("{name} is not known. {USAGE}")),
        }
    }
    let sane = (1..=CONNECTIONS_MAX).contains(&wanted.connections)
        && wanted.in_flight > 0
        && wanted.in_flight.saturating_mul(wanted.size.max(1)) <= ROUND_BYTES_MAX
        && (0.0..1e6).contains(&wanted.warmup)
        && wanted.seconds > 0.0
        && wanted.seconds < 1e6
        && wanted.topic.len() <= usize::from(u16::MAX);
    if wanted.address.is_empty() || !sane {
        return Err(format!("an argument is missing or out of range. {USAGE}"));
    }
    Ok(wanted)
}

struct Connection {
    stream: TcpStream,
    round: Vec<u8>,
    unsent_from: usize,
    answers: Answers,
    owed: usize,
    sent_at: Instant,
}

impl Connection {
    fn open(wanted: &Wanted, number: usize) -> Result<Connection, String> {
        let bad = |error: std::io::Error| format!("cannot connect to {}: {error}. Is it running?", wanted.address);
        let mut stream = TcpStream::connect(&wanted.address).map_err(bad)?;
        stream.set_nodelay(true).map_err(bad)?;
        stream.set_read_timeout(Some(Duration::from_millis(STALL_MS as u64))).map_err(bad)?;
        wanted.protocol.handshake(&mut stream, number)?;
        stream.set_nonblocking(true).map_err(bad)?;
        let round = wanted.protocol.round(&wanted.topic, wanted.size, wanted.in_flight, number);
        let answers = Answers::new(wanted.protocol);
        Ok(Connection { stream, unsent_from: round.len(), round, answers, owed: 0, sent_at: Instant::now() })
    }

    /// Write what is left of the round; true if all of it went out.
    fn push(&mut self) -> Result<bool, String> {
        while self.unsent_from < self.round.len() {
            match self.stream.write(&self.round[self.unsent_from..]) {
                Ok(wrote) => self.unsent_from += wrote,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("write failed: {error}. See the server's log.")),
            }
        }
        Ok(true)
    }

    fn start(&mut self, answers: usize, now: Instant) -> Result<bool, String> {
        (self.unsent_from, self.owed, self.sent_at) = (0, answers, now);
        self.push()
    }

    /// Read once; how many answers came.
    fn pull(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        let got = match self.stream.read(buffer) {
            Ok(0) => return Err("the server closed a connection in the middle. See its log.".into()),
            Ok(got) => got,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(0),
            Err(error) => return Err(format!("read failed: {error}. See the server's log.")),
        };
        let came = self.answers.feed(&buffer[..got])?;
        if came > self.owed {
            return Err(format!("{came} answers came where {} were owed.", self.owed));
        }
        self.owed -= came;
        Ok(came)
    }
}

/// What the loop counted. A failure leaves the counts so far.
struct Counted {
    operations: u64,
    total: u64,
    seconds: f64,
    latencies: Histogram,
}

fn run(wanted: &Wanted, counted: &mut Counted) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("epoll failed: {error}");
    let mut poll = Poll::new().map_err(broken)?;
    let mut connections = Vec::with_capacity(wanted.connections);
    for number in 0..wanted.connections {
        connections.push(Connection::open(wanted, number)?);
        poll.add(&connections[number].stream, number, READABLE).map_err(broken)?;
    }
    let answers = wanted.protocol.answers(wanted.in_flight);
    let per_answer = (wanted.in_flight / answers) as u64;
    let mut buffer = vec![0; READ_BYTES];
    let start = Instant::now();
    let from = start + Duration::from_secs_f64(wanted.warmup);
    let until = from + Duration::from_secs_f64(wanted.seconds);
    counted.seconds = wanted.seconds;
    for (number, connection) in connections.iter_mut().enumerate() {
        if !connection.start(answers, start)? {
            poll.change(&connection.stream, number, READABLE | WRITABLE).map_err(broken)?;
        }
    }
    let mut under_way = connections.len();
    let mut blocked: Vec<(usize, u32)> = Vec::new(); // interest to change once the events are read
    while under_way > 0 {
        let events = poll.wait(STALL_MS).map_err(broken)?;
        if events.is_empty() {
            return Err(format!("{under_way} rounds unanswered for {STALL_MS} ms. See the server's log."));
        }
        for event in events {
            let (what, number) = (event.what, event.token as usize);
            let connection = &mut connections[number];
            if what & WRITABLE != 0 && connection.push()? {
                blocked.push((number, READABLE));
            }
            if what & !WRITABLE == 0 {
                continue;
            }
            let came = connection.pull(&mut buffer)? as u64;
            if came == 0 {
                continue;
            }
            let now = Instant::now();
            let measured = now >= from && now < until;
            counted.total += came * per_answer;
            counted.operations += if measured { came * per_answer } else { 0 };
            if connection.owed > 0 {
                continue;
            }
            if measured {
                counted.latencies.add((now - connection.sent_at).as_nanos() as u64);
            }
            if now >= until {
                under_way -= 1;
            } else if !connection.start(answers, now)? {
                blocked.push((number, READABLE | WRITABLE));
            }
        }
        for (number, what) in blocked.drain(..) {
            poll.change(&connections[number].stream, number, what).map_err(broken)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let wanted = match arguments(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(why) => {
            eprintln!("loadgen: {why}");
            return ExitCode::from(2);
        }
    };
    let mut counted = Counted { operations: 0, total: 0, seconds: 0.0, latencies: Histogram::new() };
    let outcome = run(&wanted, &mut counted);
    println!(
        "{{\"operations\":{},\"seconds\":{},\"p50_us\":{:.1},\"p99_us\":{:.1},\"errors\":{},\"total\":{}}}",
        counted.operations,
        counted.seconds,
        counted.latencies.at_us(0.5),
        counted.latencies.at_us(0.99),
        u8::from(outcome.is_err()),
        counted.total,
    );
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("loadgen: {why}");
            ExitCode::FAILURE
        }
    }
}
