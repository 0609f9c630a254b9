//! The open loop: message i is due at start + i / rate and leaves then, whatever the server does; one that leaves late
//! keeps the time it was due, and its latency is from that time to its answer. So a server that stalls is measured with
//! all that was due meanwhile, and a generator that falls behind is no gain for the server.
//!
//! Messages go to the connections in turn, each with what asks for its own answer; answers of a connection come in order.
//! Latencies are of messages that were due after the warm-up.

use crate::link::{Link, READ_BYTES, STALL_MS};
use crate::poll::{Poll, READABLE, WRITABLE, wake_up_precisely};
use crate::wire::{Answers, Shape};
use crate::{Counted, Wanted};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

struct Connection {
    link: Link,
    message: Vec<u8>,
    answers: Answers,
    due: VecDeque<Instant>, // of what is not answered yet
    unsent: usize,          // messages that became due and are not written
}

pub fn run(wanted: &Wanted, counted: &mut Counted) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("epoll failed: {error}");
    let shape = Shape { messages: 1, ..wanted.shape.clone() };
    let mut poll = Poll::new().map_err(broken)?;
    let mut connections = Vec::with_capacity(wanted.connections);
    for number in 0..wanted.connections {
        connections.push(Connection {
            link: Link::open(wanted.protocol, &wanted.address, number, &shape.topic)?,
            message: wanted.protocol.round(&shape, number),
            answers: Answers::new(wanted.protocol),
            due: VecDeque::new(),
            unsent: 0,
        });
        poll.add(&connections[number].link.stream, number, READABLE).map_err(broken)?;
    }
    wake_up_precisely();
    let count = ((wanted.warmup + wanted.seconds) * wanted.rate) as u64;
    let stall = Duration::from_millis(STALL_MS as u64);
    let start = Instant::now();
    let due_at = |message: u64| start + Duration::from_secs_f64(message as f64 / wanted.rate);
    let from = start + Duration::from_secs_f64(wanted.warmup);
    let (mut buffer, mut blocked) = (vec![0; READ_BYTES], Vec::new());
    let (mut sent, mut heard_at) = (0, start);
    while counted.total < count {
        let now = Instant::now();
        let before = sent;
        while sent < count && due_at(sent) <= now {
            let connection = &mut connections[sent as usize % wanted.connections];
            connection.due.push_back(due_at(sent));
            connection.unsent += 1;
            sent += 1;
        }
        for number in before..sent.min(before + wanted.connections as u64) {
            let number = number as usize % wanted.connections;
            let connection = &mut connections[number];
            let bytes = connection.message.repeat(std::mem::take(&mut connection.unsent));
            if !connection.link.send(&bytes)? {
                poll.change(&connection.link.stream, number, READABLE | WRITABLE).map_err(broken)?;
            }
        }
        if now - heard_at > stall {
            return Err(format!(
                "{} messages unanswered for {STALL_MS} ms. See the server's log.",
                sent - counted.total
            ));
        }
        let wait = if sent < count { due_at(sent).saturating_duration_since(Instant::now()) } else { stall };
        for event in poll.wait_for(wait).map_err(broken)? {
            let (what, number) = (event.what, event.token as usize);
            let connection = &mut connections[number];
            if what & WRITABLE != 0 && connection.link.push()? {
                blocked.push(number);
            }
            if what & !WRITABLE == 0 {
                continue;
            }
            let got = connection.link.read(&mut buffer)?;
            let came = connection.answers.feed(&buffer[..got])?;
            heard_at = Instant::now();
            for _ in 0..came {
                let due = connection.due.pop_front().ok_or("more answers came than messages were sent.")?;
                if due >= from {
                    counted.operations += 1;
                    counted.latencies.add((heard_at - due).as_nanos() as u64);
                }
            }
            counted.total += came as u64;
        }
        for number in blocked.drain(..) {
            poll.change(&connections[number].link.stream, number, READABLE).map_err(broken)?;
        }
    }
    counted.seconds = (heard_at - from).as_secs_f64();
    Ok(())
}
