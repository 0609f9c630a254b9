//! Requests that are answered: acknowledged publishes one at a time, and cache gets many at a time.

use crate::bare::Timed;
use crate::options::Options;
use crate::transport::Target;
use crate::wire::{self, Reader, Scope, base64, frame, head, number, u64_at};
use crate::{Outcome, processor_seconds};
use quinn::{Connection, SendStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const FIRST_ID: u64 = 1_000_000_000; // so that all ids of a run have as many digits and go into one place
const ID_DIGITS: usize = 10;
const KEY_DIGITS: usize = 12; // key:000000000042, as redis-benchmark names them
const PUTS_AT_ONCE: usize = 500;

fn patch(bytes: &mut [u8], at: usize, digits: usize, mut value: u64) {
    for place in (at..at + digits).rev() {
        bytes[place] = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

fn place(bytes: &[u8], mark: &str) -> usize {
    let found = bytes.windows(mark.len()).rposition(|part| part == mark.as_bytes());
    found.expect("the template has what it was made with") + mark.len()
}

fn answered(reader: &Reader, flags: u16, payload: std::ops::Range<usize>, binary: bool, id: u64) -> Outcome<()> {
    let said = &reader.buffer[payload];
    let good = if binary {
        flags == wire::BATCH_ACK && said.first() == Some(&0) && u64_at(said, 1)? == id
    } else {
        flags == 0 && said.starts_with(br#"{"type":"publish_ok""#) && number(said, "request_id")? == id
    };
    if good {
        return Ok(());
    }
    Err(format!("publish {id} was answered by {flags:#x} {:?}", String::from_utf8_lossy(said)).into())
}

/// `--form json` (publish with ack per_message) or `binary` (0x0009 with one record), one under way.
pub async fn round_trips(options: &mut Options) -> Outcome<String> {
    let target = Target::take(options)?;
    let scope = Scope::take(options)?;
    let form: String = options.take("form", "json".to_owned())?;
    let size: usize = options.take("size", 100)?;
    let (warmup, seconds) = (options.take("warmup", 0.5)?, options.take("seconds", 2.0)?);
    options.done()?;
    let binary = match form.as_str() {
        "json" => false,
        "binary" => true,
        other => return Err(format!("--form {other:?} is neither json nor binary").into()),
    };
    let value = vec![0x42; size];
    let mut request = if binary {
        let lead = [&FIRST_ID.to_be_bytes()[..], &[wire::PER_MESSAGE], &scope.binary()].concat();
        let body = [&lead[..], &1u32.to_be_bytes(), &(size as u32).to_be_bytes(), &value].concat();
        frame(wire::BATCH_ACKED, &body)
    } else {
        let (names, payload) = (scope.json("stream"), base64(&value));
        let text = format!(
            r#"{{"type":"publish",{names},"payload":"{payload}","request_id":{FIRST_ID},"ack":"per_message"}}"#
        );
        frame(0, text.as_bytes())
    };
    let at = if binary { wire::HEAD_BYTES } else { place(&request, r#""request_id":"#) };
    let endpoint = target.endpoint()?;
    let connection = target.connect(&endpoint).await?;
    let (mut send, mut reader) = scope.open(&connection).await?;
    let (mut seen, mut id) = (Timed::new(warmup, seconds), FIRST_ID);
    while seen.goes_on() {
        let start = Instant::now();
        match binary {
            true => request[at..at + 8].copy_from_slice(&id.to_be_bytes()),
            false => patch(&mut request, at, ID_DIGITS, id),
        }
        send.write_all(&request).await?;
        let (flags, payload) = reader.next().await?;
        seen.add(start);
        answered(&reader, flags, payload, binary, id)?;
        id += 1;
    }
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(format!("{{{},\"total\":{}}}", seen.json(), id - FIRST_ID))
}

/// Keys with the values they have, as base64 in quotes.
struct Entries {
    names: String,
    values: Vec<String>,
}

impl Entries {
    fn new(scope: &Scope, keys: usize, size: usize) -> Entries {
        let value = |key: usize| base64(&format!("{key:012}:").bytes().cycle().take(size).collect::<Vec<_>>());
        Entries { names: scope.json("cache"), values: (0..keys).map(|key| format!("\"{}\"", value(key))).collect() }
    }

    async fn put(&self, send: &mut SendStream, reader: &mut Reader) -> Outcome<()> {
        for first in (0..self.values.len()).step_by(PUTS_AT_ONCE) {
            let last = (first + PUTS_AT_ONCE).min(self.values.len());
            let mut bytes = Vec::new();
            for key in first..last {
                let (names, value) = (&self.names, &self.values[key]);
                let text = format!(
                    r#"{{"type":"cache_put",{names},"key":"key:{key:012}","value":{value},"request_id":{key},"ttl_ms":null}}"#
                );
                bytes.extend_from_slice(&frame(0, text.as_bytes()));
            }
            send.write_all(&bytes).await?;
            for _ in first..last {
                reader.json("cache_ok").await?;
            }
        }
        Ok(())
    }

    /// A request with places for a key and an id.
    fn get(&self) -> Vec<u8> {
        let names = &self.names;
        let text = format!(r#"{{"type":"cache_get",{names},"key":"key:000000000000","request_id":{FIRST_ID}}}"#);
        [&head(0, text.len())[..], text.as_bytes()].concat()
    }

    /// The id of a reply that has this key's value, or why it is none.
    fn check(&self, said: &[u8], asked: &[usize], first_id: u64) -> Outcome<usize> {
        let wrong = || format!("ids from {first_id} on were asked for, and {:?} came", String::from_utf8_lossy(said));
        let slot = number(said, "request_id")?.checked_sub(first_id).ok_or_else(wrong)? as usize;
        let expected = self.values.get(*asked.get(slot).ok_or_else(wrong)?).ok_or_else(wrong)?;
        let at = place_of(said, br#""value":"#).ok_or_else(wrong)?;
        if !said.starts_with(br#"{"type":"cache_value""#) || !said[at..].starts_with(expected.as_bytes()) {
            return Err(wrong().into());
        }
        Ok(slot)
    }
}

fn place_of(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|part| part == mark).map(|at| at + mark.len())
}

/// One stream: so many gets in one write, then all their replies, in any order, over and over.
async fn gets(
    connection: Connection,
    scope: Scope,
    entries: Arc<Entries>,
    at_once: usize,
    seed: u64,
    seen: Arc<Mutex<Timed>>,
) -> Outcome<()> {
    let (mut send, mut reader) = scope.open(&connection).await?;
    let one = entries.get();
    let mut bytes = one.repeat(at_once);
    let (key_at, id_at) = (place(&one, r#""key":"key:"#), place(&one, r#""request_id":"#));
    let (mut chance, mut id) = (seed, FIRST_ID);
    let (mut asked, mut missing) = (vec![0; at_once], vec![false; at_once]);
    let goes_on = || seen.lock().expect("one thread").goes_on();
    while goes_on() {
        for slot in 0..at_once {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            asked[slot] = (chance % entries.values.len() as u64) as usize;
            patch(&mut bytes, slot * one.len() + key_at, KEY_DIGITS, asked[slot] as u64);
            patch(&mut bytes, slot * one.len() + id_at, ID_DIGITS, id + slot as u64);
            missing[slot] = true;
        }
        let start = Instant::now();
        send.write_all(&bytes).await?;
        for _ in 0..at_once {
            let (_, payload) = reader.next().await?;
            let slot = entries.check(&reader.buffer[payload], &asked, id)?;
            if !std::mem::take(&mut missing[slot]) {
                return Err(format!("id {} was answered twice", id + slot as u64).into());
            }
            seen.lock().expect("one thread").add(start);
        }
        id += at_once as u64;
    }
    Ok(())
}

/// `--inflight 64` gets under way on `--streams 8` of one connection, over `--keys` put beforehand.
pub async fn cache(options: &mut Options) -> Outcome<String> {
    let target = Target::take(options)?;
    let scope = Scope::take(options)?;
    let (inflight, streams): (usize, usize) = (options.take("inflight", 64)?, options.take("streams", 8)?);
    let (keys, size): (usize, usize) = (options.take("keys", 10_000)?, options.take("size", 100)?);
    let (warmup, seconds) = (options.take("warmup", 0.5)?, options.take("seconds", 2.0)?);
    options.done()?;
    if streams == 0 || inflight < streams || keys == 0 {
        return Err("each stream needs at least one request, and there must be keys".into());
    }
    let entries = Arc::new(Entries::new(&scope, keys, size));
    let endpoint = target.endpoint()?;
    let connection = target.connect(&endpoint).await?;
    let (mut send, mut reader) = scope.open(&connection).await?;
    entries.put(&mut send, &mut reader).await?;
    let busy = processor_seconds();
    let seen = Arc::new(Mutex::new(Timed::new(warmup, seconds)));
    let mut tasks = Vec::new();
    for stream in 1..=streams as u64 {
        let work = gets(
            connection.clone(),
            scope.clone(),
            entries.clone(),
            inflight / streams,
            0x9e37_79b9_7f4a_7c15 * stream,
            seen.clone(),
        );
        tasks.push(tokio::spawn(work));
    }
    for task in tasks {
        task.await??;
    }
    let (json, busy) = (seen.lock().expect("one thread").json(), processor_seconds() - busy);
    connection.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    Ok(format!("{{{json},\"busy_s\":{busy:.2}}}"))
}
