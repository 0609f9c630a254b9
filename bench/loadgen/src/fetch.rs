//! Reading: FETCH requests over FlyMQ connections, each asking for a run of messages that is there, several under way on
//! each connection; and the plain reading of a stream of known length, which is what sendfile is measured with.
//!
//! Partitions hold `held` messages each. A connection goes through all of them in turn, `run` messages of each, and comes
//! back for the next run; connections begin evenly spread over this cycle. An answer with another number of messages than
//! asked for fails the run. With `once`, the run ends when one cycle was read.

use crate::fly;
use crate::link::{Link, STALL_MS};
use crate::poll::{Poll, READABLE, WRITABLE};
use crate::{Counted, Wanted};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const READ_BYTES: usize = 1024 * 1024;
const HEAD_BYTES: usize = fly::HEAD_BYTES + 4;

struct Reader {
    link: Link,
    place: usize, // of the next request in the cycle
    under_way: usize,
    left: usize, // requests that may still be sent
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    body_left: usize,
}

impl Reader {
    fn ask(&mut self, wanted: &Wanted, names: &[String], requests: usize) -> Result<bool, String> {
        let shape = &wanted.shape;
        let pairs = shape.topics * shape.partitions;
        let mut out = Vec::new();
        for _ in 0..requests.min(self.left) {
            let (pass, pair) = (self.place / pairs % (wanted.held / shape.run), self.place % pairs);
            let offset = (pass * shape.run) as u64;
            out.extend(fly::fetch(&names[pair / shape.partitions], pair % shape.partitions, offset, shape.run));
            self.place += 1;
            self.left -= 1;
            self.under_way += 1;
        }
        self.link.send(&out)
    }

    /// Count what is in a piece of the stream; how many answers ended in it.
    fn take(&mut self, mut piece: &[u8], run: usize) -> Result<usize, String> {
        let mut ended = 0;
        while !piece.is_empty() {
            if self.body_left > 0 {
                let skipped = self.body_left.min(piece.len());
                self.body_left -= skipped;
                piece = &piece[skipped..];
                ended += usize::from(self.body_left == 0);
                continue;
            }
            let taken = (HEAD_BYTES - self.head_bytes).min(piece.len());
            self.head[self.head_bytes..self.head_bytes + taken].copy_from_slice(&piece[..taken]);
            self.head_bytes += taken;
            piece = &piece[taken..];
            if self.head_bytes == HEAD_BYTES {
                let (messages, bytes) = fly::fetched(&self.head)?;
                if messages != run {
                    return Err(format!("{messages} messages came where {run} were asked for."));
                }
                (self.head_bytes, self.body_left) = (0, bytes - HEAD_BYTES);
            }
        }
        self.under_way -= ended;
        Ok(ended)
    }
}

pub fn run(wanted: &Wanted, counted: &mut Counted) -> Result<(), String> {
    let broken = |error: std::io::Error| format!("epoll failed: {error}");
    let shape = &wanted.shape;
    let names: Vec<String> = match wanted.turning {
        true => (0..shape.topics).map(|number| fly::named(&shape.topic, number)).collect(),
        false => vec![shape.topic.clone()],
    };
    let cycle = shape.topics * shape.partitions * (wanted.held / shape.run);
    let mut poll = Poll::new().map_err(broken)?;
    let mut readers = Vec::with_capacity(wanted.connections);
    for number in 0..wanted.connections {
        readers.push(Reader {
            link: Link::open(wanted.protocol, &wanted.address, number, &shape.topic)?,
            place: number * cycle / wanted.connections,
            under_way: 0,
            left: if wanted.once { cycle } else { usize::MAX },
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            body_left: 0,
        });
        poll.add(&readers[number].link.stream, number, READABLE).map_err(broken)?;
    }
    let mut copy = match &wanted.save {
        Some(path) => Some(File::create(path).map_err(|error| format!("{path}: {error}"))?),
        None => None,
    };
    let mut buffer = vec![0; READ_BYTES];
    let start = Instant::now();
    let from = start + Duration::from_secs_f64(wanted.warmup);
    let until = from + Duration::from_secs_f64(wanted.seconds);
    for (number, reader) in readers.iter_mut().enumerate() {
        if !reader.ask(wanted, &names, shape.messages)? {
            poll.change(&reader.link.stream, number, READABLE | WRITABLE).map_err(broken)?;
        }
    }
    let mut blocked: Vec<(usize, u32)> = Vec::new();
    while readers.iter().any(|reader| reader.under_way > 0) {
        let events = poll.wait(STALL_MS).map_err(broken)?;
        if events.is_empty() {
            return Err(format!("nothing came for {STALL_MS} ms though it was asked for. See the server's log."));
        }
        for event in events {
            let (what, number) = (event.what, event.token as usize);
            let reader = &mut readers[number];
            if what & WRITABLE != 0 && reader.link.push()? {
                blocked.push((number, READABLE));
            }
            if what & !WRITABLE == 0 {
                continue;
            }
            let got = reader.link.read(&mut buffer)?;
            let ended = reader.take(&buffer[..got], shape.run)?;
            if let Some(file) = &mut copy {
                file.write_all(&buffer[..got]).map_err(|error| format!("the copy: {error}"))?;
            }
            let now = Instant::now();
            let measured = wanted.once || now >= from && now < until;
            counted.total += (ended * shape.run) as u64;
            counted.operations += if measured { (ended * shape.run) as u64 } else { 0 };
            counted.bytes += if measured { got as u64 } else { 0 };
            if ended > 0 && (wanted.once || now < until) && !reader.ask(wanted, &names, ended)? {
                blocked.push((number, READABLE | WRITABLE));
            }
        }
        for (number, what) in blocked.drain(..) {
            poll.change(&readers[number].link.stream, number, what).map_err(broken)?;
        }
    }
    counted.seconds = if wanted.once { start.elapsed().as_secs_f64() } else { wanted.seconds };
    Ok(())
}

/// Read a stream to its end: from the first request for it (one byte) to its last byte.
pub fn drain(wanted: &Wanted, counted: &mut Counted) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the stream from {}: {error}", wanted.address);
    let mut stream = TcpStream::connect(&wanted.address).map_err(failed)?;
    let mut buffer = vec![0; READ_BYTES];
    let start = Instant::now();
    stream.write_all(b"?").map_err(failed)?;
    loop {
        match stream.read(&mut buffer).map_err(failed)? {
            0 => break,
            got => counted.bytes += got as u64,
        }
    }
    counted.seconds = start.elapsed().as_secs_f64();
    Ok(())
}
