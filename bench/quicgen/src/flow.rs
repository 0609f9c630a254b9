//! Bytes through the broker: binary batches in, events out, every record counted and in its place.
//!
//! A record's payload begins with its number as u64; the rest is filler. In `felix-flow` the publisher is never more than
//! `--ahead` bytes in front of the slowest subscriber, as in the loads of the other doors: what is measured is how fast
//! records get through and not how they are dropped or piled up.

use crate::options::Options;
use crate::transport::{Target, path};
use crate::wire::{self, Reader, Scope, frame, head, u32_at, u64_at};
use crate::{Outcome, processor_seconds};
use quinn::{Connection, SendStream};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

const AFTER_END: Duration = Duration::from_millis(50); // in which nothing more may arrive
const RUN_MAX: Duration = Duration::from_secs(120);
const FILLER: u8 = 0x42;

#[derive(Clone)]
struct Shape {
    scope: Scope,
    batches: u64,
    batch: u64,       // records
    size: usize,      // bytes of a record
    outstanding: u64, // batches whose acknowledgement is waited for; 0: they are not acknowledged
    ahead: u64,       // bytes
}

impl Shape {
    fn take(options: &mut Options) -> Outcome<Shape> {
        let (batch, size): (u64, usize) = (options.take("batch", 64)?, options.take("size", 1024)?);
        let bytes: u64 = options.need("bytes")?;
        if batch == 0 || size < 8 || bytes == 0 {
            return Err("--batch and --bytes must be above 0, --size at least 8".into());
        }
        Ok(Shape {
            scope: Scope::take(options)?,
            batches: bytes.div_ceil(batch * size as u64),
            batch,
            size,
            outstanding: options.take("outstanding", 0)?,
            ahead: options.take("ahead", 8 << 20)?,
        })
    }

    fn records(&self) -> u64 {
        self.batches * self.batch
    }
}

/// How many records each subscriber has, for the publisher that waits for the slowest.
struct Progress {
    delivered: Vec<AtomicU64>,
    waiting: AtomicBool,
    moved: Notify,
}

impl Progress {
    fn new(subscribers: usize) -> Arc<Progress> {
        let delivered = (0..subscribers).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Progress { delivered, waiting: AtomicBool::new(false), moved: Notify::new() })
    }

    fn slowest(&self) -> u64 {
        self.delivered.iter().map(|count| count.load(Ordering::SeqCst)).min().unwrap_or(u64::MAX)
    }

    fn arrived(&self, subscriber: usize, records: u64) {
        self.delivered[subscriber].store(records, Ordering::SeqCst);
        if self.waiting.swap(false, Ordering::SeqCst) {
            self.moved.notify_one();
        }
    }

    /// Returns when the slowest subscriber has at least so many records.
    async fn reached(&self, records: u64) {
        while self.slowest() < records {
            self.waiting.store(true, Ordering::SeqCst);
            if self.slowest() < records {
                self.moved.notified().await;
            }
        }
    }
}

/// A side that cannot go on ends the run at once: the others would wait for it.
fn die(why: &str) -> ! {
    eprintln!("quicgen flow: {why}");
    std::process::exit(1);
}

/// One batch, made once; only numbers are written into it later.
struct Template {
    bytes: Vec<u8>,
    acked: bool,
    records: Vec<usize>, // where each payload begins
}

impl Template {
    fn new(shape: &Shape) -> Template {
        let acked = shape.outstanding > 0;
        let mut body = Vec::new();
        if acked {
            body.extend_from_slice(&0u64.to_be_bytes());
            body.push(wire::PER_BATCH);
        }
        body.extend_from_slice(&shape.scope.binary());
        body.extend_from_slice(&(shape.batch as u32).to_be_bytes());
        let mut records = Vec::new();
        for _ in 0..shape.batch {
            body.extend_from_slice(&(shape.size as u32).to_be_bytes());
            records.push(wire::HEAD_BYTES + body.len());
            body.resize(body.len() + shape.size, FILLER);
        }
        let flags = if acked { wire::BATCH_ACKED } else { wire::BATCH };
        Template { bytes: [&head(flags, body.len())[..], &body].concat(), acked, records }
    }

    fn number(&mut self, batch: u64) -> &[u8] {
        if self.acked {
            self.bytes[wire::HEAD_BYTES..wire::HEAD_BYTES + 8].copy_from_slice(&batch.to_be_bytes());
        }
        let first = batch * self.records.len() as u64;
        for (number, at) in (first..).zip(&self.records) {
            self.bytes[*at..*at + 8].copy_from_slice(&number.to_be_bytes());
        }
        &self.bytes
    }
}

/// Acknowledgements that are there, or the first that comes; they must be in order.
async fn acknowledged(reader: &mut Reader, mut next: u64) -> Outcome<u64> {
    reader.fill().await?;
    while let Some((flags, payload)) = reader.ready()? {
        let said = &reader.buffer[payload];
        if flags != wire::BATCH_ACK || said.first() != Some(&0) || u64_at(said, 1)? != next {
            return Err(format!("batch {next} was not acknowledged but {:?}", String::from_utf8_lossy(said)).into());
        }
        next += 1;
    }
    Ok(next)
}

async fn publish(mut send: SendStream, mut reader: Reader, shape: &Shape, progress: &Progress) -> Outcome<SendStream> {
    let mut template = Template::new(shape);
    let ahead = (shape.ahead / shape.size as u64).max(shape.batch);
    let mut acked = 0;
    if shape.outstanding == 0 {
        tokio::spawn(async move {
            if let Ok((_, payload)) = reader.next().await {
                die(&format!("a batch was answered: {}", String::from_utf8_lossy(&reader.buffer[payload])));
            }
        });
        for batch in 0..shape.batches {
            progress.reached(((batch + 1) * shape.batch).saturating_sub(ahead)).await;
            send.write_all(template.number(batch)).await?;
        }
        return Ok(send);
    }
    for batch in 0..shape.batches {
        while batch - acked >= shape.outstanding {
            acked = acknowledged(&mut reader, acked).await?;
        }
        progress.reached(((batch + 1) * shape.batch).saturating_sub(ahead)).await;
        send.write_all(template.number(batch)).await?;
    }
    while acked < shape.batches {
        acked = acknowledged(&mut reader, acked).await?;
    }
    Ok(send)
}

/// A subscription from now on: its event stream, behind the hello.
async fn subscribe(connection: &Connection, scope: &Scope, id: u64) -> Outcome<Reader> {
    let (mut send, mut reader) = scope.open(connection).await?;
    let ask = format!(r#"{{"type":"subscribe",{},"subscription_id":{id},"start":"latest"}}"#, scope.json("stream"));
    send.write_all(&frame(0, ask.as_bytes())).await?;
    let given = wire::number(reader.json("subscribed").await?.as_bytes(), "subscription_id")?;
    send.finish()?;
    let mut events = Reader::new(connection.accept_uni().await?);
    let hello = wire::number(events.json("event_stream_hello").await?.as_bytes(), "subscription_id")?;
    if given != id || hello != id {
        return Err(format!("subscription {id} was answered as {given} and opened as {hello}").into());
    }
    Ok(events)
}

/// The records of one frame; `next` is the number of the first. The number of the one behind them.
fn records(flags: u16, payload: &[u8], shape: &Shape, mut next: u64) -> Outcome<u64> {
    let mut at = match flags & !wire::OFFSETS {
        wire::EVENTS_OF_ONE => 8,
        wire::EVENTS_SHARED => 0,
        _ => return Err(format!("no events: {flags:#x} {}", String::from_utf8_lossy(payload)).into()),
    };
    at += if flags & wire::OFFSETS != 0 { 8 } else { 0 };
    let count = u32_at(payload, at)?;
    at += 4;
    for _ in 0..count {
        let (length, number) = (u32_at(payload, at)? as usize, u64_at(payload, at + 4)?);
        if length != shape.size || number != next {
            return Err(format!("record {next} was due, and {number} with {length} bytes came").into());
        }
        at += 4 + length;
        next += 1;
    }
    if at != payload.len() {
        return Err("bytes behind the records of a frame".into());
    }
    Ok(next)
}

/// Count one subscription's records to the last. When the first and the last came.
async fn follow(
    mut reader: Reader,
    number: usize,
    shape: Shape,
    progress: Arc<Progress>,
) -> Outcome<(Instant, Instant)> {
    let (mut next, mut first) = (0, None);
    while next < shape.records() {
        let before = next;
        while let Some((flags, payload)) = reader.ready()? {
            next = records(flags, &reader.buffer[payload], &shape, next)?;
        }
        if next > before {
            first.get_or_insert_with(Instant::now);
            progress.arrived(number, next);
        }
        if next < shape.records() {
            reader.fill().await?;
        }
    }
    let last = Instant::now();
    if tokio::time::timeout(AFTER_END, reader.next()).await.is_ok() {
        return Err("something came behind the last record".into());
    }
    Ok((first.unwrap_or(last), last))
}

/// All subscriptions, spread over the connections. Says when all are open, and from when to when records came.
async fn subscribers(
    connections: Vec<Connection>,
    shape: Shape,
    progress: Arc<Progress>,
    ready: oneshot::Sender<()>,
) -> Outcome<(Instant, Instant)> {
    let mut tasks = Vec::new();
    for number in 0..progress.delivered.len() {
        let connection = &connections[number % connections.len()];
        let reader = subscribe(connection, &shape.scope, number as u64 + 1).await?;
        let task = follow(reader, number, shape.clone(), progress.clone());
        tasks.push(tokio::spawn(async { task.await.unwrap_or_else(|why| die(&format!("a subscriber: {why}"))) }));
    }
    let _ = ready.send(());
    let mut seen: Option<(Instant, Instant)> = None;
    for task in tasks {
        let (first, last) = task.await?;
        seen = Some(seen.map_or((first, last), |(from, until)| (from.min(first), until.max(last))));
    }
    seen.ok_or_else(|| "there were no subscribers".into())
}

/// Subscribers with connections of their own, in a thread of their own.
async fn subscribers_apart(
    target: Target,
    count: usize,
    shape: Shape,
    progress: Arc<Progress>,
    ready: oneshot::Sender<()>,
) -> Outcome<(Instant, Instant)> {
    let endpoint = target.endpoint()?;
    let mut connections = Vec::new();
    for _ in 0..count {
        connections.push(target.connect(&endpoint).await?);
    }
    let seen = subscribers(connections, shape, progress, ready).await;
    endpoint.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    seen
}

/// `--subscribers K` on `--connections C` of their own, or with C = 0 on the publisher's. Timed from the publisher's first
/// write to the last record of the last subscriber.
pub async fn both(options: &mut Options) -> Outcome<String> {
    let target = Target::take(options)?;
    let shape = Shape::take(options)?;
    let (count, apart): (usize, usize) = (options.take("subscribers", 1)?, options.take("connections", 0)?);
    options.done()?;
    let progress = Progress::new(count);
    let endpoint = target.endpoint()?;
    let connection = target.connect(&endpoint).await?;
    let (ready, all_open) = oneshot::channel();
    let (done, result) = oneshot::channel();
    let (theirs, watched) = (shape.clone(), progress.clone());
    if apart == 0 {
        let shared = vec![connection.clone()];
        tokio::spawn(async { done.send(subscribers(shared, theirs, watched, ready).await).ok() });
    } else {
        let target = target.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap_or_else(|why| die(&why.to_string()));
            done.send(runtime.block_on(subscribers_apart(target, apart, theirs, watched, ready))).ok()
        });
    }
    if all_open.await.is_err() {
        result.await??;
        return Err("the subscribers ended before they began".into());
    }
    let (send, reader) = shape.scope.open(&connection).await?;
    let (start, busy) = (Instant::now(), processor_seconds());
    let kept = tokio::time::timeout(RUN_MAX, publish(send, reader, &shape, &progress))
        .await
        .map_err(|_| slow(&progress))??;
    let published = start.elapsed().as_secs_f64();
    let (_, last) = tokio::time::timeout(RUN_MAX, result).await.map_err(|_| slow(&progress))???;
    let (seconds, busy) = ((last - start).as_secs_f64(), processor_seconds() - busy);
    drop(kept);
    let fared = path(&connection);
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    let delivered = shape.records() * shape.size as u64 * count as u64;
    Ok(format!(
        "{{\"records\":{},\"bytes\":{delivered},\"seconds\":{seconds},\"publish_s\":{published},\"busy_s\":{busy:.2},{fared}}}",
        shape.records()
    ))
}

fn slow(progress: &Progress) -> String {
    format!("not through in {RUN_MAX:?}; the slowest subscriber has {} records", progress.slowest())
}

/// The publisher alone. Without acknowledgements it waits until QUIC says that the whole stream arrived.
pub async fn publish_alone(options: &mut Options) -> Outcome<String> {
    let target = Target::take(options)?;
    let shape = Shape::take(options)?;
    options.done()?;
    let endpoint = target.endpoint()?;
    let connection = target.connect(&endpoint).await?;
    let (send, reader) = shape.scope.open(&connection).await?;
    let (start, busy) = (Instant::now(), processor_seconds());
    let mut send = publish(send, reader, &shape, &Progress::new(0)).await?;
    send.finish()?;
    send.stopped().await?;
    let (seconds, busy) = (start.elapsed().as_secs_f64(), processor_seconds() - busy);
    let fared = path(&connection);
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    let bytes = shape.records() * shape.size as u64;
    Ok(format!("{{\"bytes\":{bytes},\"seconds\":{seconds},\"busy_s\":{busy:.2},{fared}}}"))
}

/// The subscribers alone; `{"ready":K}` is printed when all are open. Timed from the first record to the last.
pub async fn subscribe_alone(options: &mut Options) -> Outcome<String> {
    let target = Target::take(options)?;
    let shape = Shape::take(options)?;
    let (count, connections): (usize, usize) = (options.take("subscribers", 1)?, options.take("connections", 1)?);
    options.done()?;
    let (ready, all_open) = oneshot::channel();
    tokio::spawn(async move {
        if all_open.await.is_ok() {
            println!("{{\"ready\":{count}}}");
            let _ = std::io::stdout().flush();
        }
    });
    let records = shape.records();
    let bytes = records * shape.size as u64 * count as u64;
    let (first, last) = subscribers_apart(target, connections.max(1), shape, Progress::new(count), ready).await?;
    let (seconds, busy) = ((last - first).as_secs_f64(), processor_seconds());
    Ok(format!("{{\"records\":{records},\"bytes\":{bytes},\"seconds\":{seconds},\"busy_s\":{busy:.2}}}"))
}
