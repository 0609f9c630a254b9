//! The closed loop: a round is F messages in one write, and the next round of a connection starts when all answers of the
//! last one came. Operations are the messages answered between the end of the warm-up and the end of the run; latencies
//! are those of rounds that ended there. `total` counts all that were acknowledged, warm-up and end included, so that it
//! can be compared with what the server has.

use crate::fly::Turning;
use crate::histogram::Histogram;
use crate::link::{Link, READ_BYTES, STALL_MS};
use crate::poll::{Poll, READABLE, WRITABLE};
use crate::wire::{Answers, Protocol};
use crate::{Counted, Wanted};
use std::time::{Duration, Instant};

struct Connection {
    link: Link,
    round: Vec<u8>,
    turning: Option<Turning>,
    answers: Answers,
    owed: usize,
    begun: u64, // rounds
    left: u64,  // rounds, where their number is what ends the run
    sent_at: Instant,
}

impl Connection {
    fn open(wanted: &Wanted, number: usize) -> Result<Connection, String> {
        let link = Link::open(wanted.protocol, &wanted.address, number, &wanted.shape.topic)?;
        let round = wanted.protocol.round(&wanted.shape, number);
        let turning = (wanted.shape.run > 0).then(|| Turning::new(&wanted.shape, &round, number, wanted.connections));
        let answers = Answers::new(wanted.protocol);
        let (left, sent_at) = (wanted.rounds, Instant::now());
        Ok(Connection { link, round, turning, answers, owed: 0, begun: 0, left, sent_at })
    }

    /// Begin the next round; true if all of it went out.
    fn start(&mut self, protocol: Protocol, now: Instant, answers: usize) -> Result<bool, String> {
        if let Some(turning) = &mut self.turning {
            turning.turn(&mut self.round);
        }
        if let Protocol::Script(script) = protocol {
            script.number(&mut self.round, self.begun);
        }
        self.begun += 1;
        (self.owed, self.sent_at) = (answers, now);
        self.left = self.left.saturating_sub(1);
        self.link.send(&self.round)
    }

    /// Read once; how many answers came.
    fn pull(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        let got = self.link.read(buffer)?;
        let came = self.answers.feed(&buffer[..got])?;
        if came > self.owed {
            return Err(format!("{came} answers came where {} were owed.", self.owed));
        }
        self.owed -= came;
        Ok(came)
    }
}

pub fn run(wanted: &Wanted, counted: &mut Counted) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("epoll failed: {error}");
    let mut poll = Poll::new().map_err(broken)?;
    let mut connections = Vec::with_capacity(wanted.connections);
    for number in 0..wanted.connections {
        connections.push(Connection::open(wanted, number)?);
        poll.add(&connections[number].link.stream, number, READABLE).map_err(broken)?;
    }
    let answers = wanted.protocol.answers(wanted.shape.messages);
    let per_answer = (wanted.shape.messages / answers) as u64;
    let mut buffer = vec![0; READ_BYTES];
    counted.latencies = Histogram::new();
    let start = Instant::now();
    let from = start + Duration::from_secs_f64(wanted.warmup);
    let until = from + Duration::from_secs_f64(wanted.seconds);
    counted.seconds = wanted.seconds;
    for (number, connection) in connections.iter_mut().enumerate() {
        if !connection.start(wanted.protocol, start, answers)? {
            poll.change(&connection.link.stream, number, READABLE | WRITABLE).map_err(broken)?;
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
            if what & WRITABLE != 0 && connection.link.push()? {
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
            let measured = now >= from && now < until || wanted.rounds > 0;
            counted.total += came * per_answer;
            counted.operations += if measured { came * per_answer } else { 0 };
            if connection.owed > 0 {
                continue;
            }
            if measured {
                counted.latencies.add((now - connection.sent_at).as_nanos() as u64);
            }
            let over = if wanted.rounds > 0 { connection.left == 0 } else { now >= until };
            if over {
                under_way -= 1;
            } else if !connection.start(wanted.protocol, now, answers)? {
                blocked.push((number, READABLE | WRITABLE));
            }
        }
        for (number, what) in blocked.drain(..) {
            poll.change(&connections[number].link.stream, number, what).map_err(broken)?;
        }
    }
    if wanted.rounds > 0 {
        counted.seconds = start.elapsed().as_secs_f64();
    }
    Ok(())
}
