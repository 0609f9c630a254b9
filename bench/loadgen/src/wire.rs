//! The protocols: handshakes, the bytes of one round, and the counting of answers. No sockets are polled here.
//!
//!     blipmq     F PUBLISH frames of QoS 1 and a PING; its PONG says that all of them are on the disk
//!     redis      F XADD; each is answered with its id, after the sync that appendfsync asks for
//!     jetstream  F PUB with the connection's own inbox; each is answered there when the stream has stored it
//!     nats       F PUB and a PING; its PONG says that they were read (not durable)
//!     flymq      F PRODUCE; each is answered with its offset when it is as durable as its topic asks (fly.rs)
//!     kafka      F records in one batch of one Produce request with acks=1, answered as a whole (kafka.rs)
//!     amqp       F persistent messages to a quorum queue; each is confirmed when it is on the disk (amqp.rs)
//!     script     what the options say, one message a round (script.rs)

use crate::amqp;
use crate::fly;
use crate::kafka;
use crate::script::Script;
use std::io::{Read, Write};
use std::net::TcpStream;

const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;
const LINE_BYTES_MAX: usize = 4096; // of an answer; longer ones are none that were asked for
pub const VARIED_BYTES: usize = 4; // of each payload of a round differ, as with the Python generators
const KEY: &[u8] = b"dev-key";
const NATS_CONNECT: &[u8] = b"CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"raw\",\"version\":\"1\",\
    \"protocol\":0,\"headers\":false}\r\nPING\r\n";

// BlipMQ:  u32 length | u8 type | u64 correlation id | payload          (big-endian; length counts type and id)
const HELLO: u8 = 1;
const AUTH: u8 = 2;
const PUBLISH: u8 = 3;
const ACK: u8 = 5;
const PING: u8 = 7;
const HEAD_BYTES: usize = 13;
const ACK_BYTES: usize = HEAD_BYTES + 8;
const PONG: [u8; HEAD_BYTES] = [0, 0, 0, 9, 8, 0, 0, 0, 0, 0, 0, 0, 7];

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Blipmq,
    Redis,
    JetStream,
    Nats,
    Flymq,
    Kafka,
    Amqp,
    Script(&'static Script),
}

/// What one connection sends in a round. Without `run` all goes to one topic, connection by connection to another of its
/// partitions (FlyMQ: to the one the server chooses, unless there are several).
#[derive(Clone)]
pub struct Shape {
    pub topic: String,
    pub size: usize,
    pub messages: usize,
    pub partitions: usize,
    pub topics: usize, // with `run`: `topic.00000`, `topic.00001`, ...
    pub run: usize,    // messages to one partition before the next partition or topic; 0: see above
}

impl Protocol {
    pub fn named(name: &str) -> Option<Protocol> {
        match name {
            "blipmq" => Some(Protocol::Blipmq),
            "redis" => Some(Protocol::Redis),
            "jetstream" => Some(Protocol::JetStream),
            "nats" => Some(Protocol::Nats),
            "flymq" => Some(Protocol::Flymq),
            "kafka" => Some(Protocol::Kafka),
            "amqp" => Some(Protocol::Amqp),
            _ => None,
        }
    }

    /// How many answers a round of so many messages gets.
    pub fn answers(self, messages: usize) -> usize {
        match self {
            Protocol::Blipmq | Protocol::Nats | Protocol::Kafka | Protocol::Script(_) => 1,
            Protocol::Redis | Protocol::JetStream | Protocol::Flymq | Protocol::Amqp => messages,
        }
    }

    /// Make a fresh connection ready for rounds. The stream still blocks.
    pub fn handshake(self, stream: &mut TcpStream, connection: usize, topic: &str) -> Result<(), String> {
        match self {
            Protocol::Blipmq => {
                let mut hello = frame(HELLO, 1, &[&1u16.to_be_bytes()]);
                hello.extend(frame(AUTH, 2, &[&(KEY.len() as u16).to_be_bytes(), KEY]));
                send(stream, &hello)?;
                let said = read_until(stream, |data| data.len() >= 2 * ACK_BYTES || refused(data))?;
                if said.len() != 2 * ACK_BYTES || said[4] != ACK || said[ACK_BYTES + 4] != ACK {
                    return Err(format!("HELLO and AUTH were not both acknowledged: {}", shown(&said)));
                }
                Ok(())
            }
            Protocol::Flymq => {
                send(stream, &fly::auth())?;
                let said = read_until(stream, |data| fly::whole(data).is_some())?;
                fly::welcomed(&said)
            }
            Protocol::Kafka => Ok(()), // without SASL there is none
            Protocol::Amqp => {
                for (words, answer) in amqp::opening(topic) {
                    send(stream, &words)?;
                    amqp::answered_by(&read_until(stream, |data| amqp::whole(data).is_some())?, answer)?;
                }
                Ok(())
            }
            Protocol::Script(script) => {
                for (words, bytes) in &script.opening {
                    send(stream, words)?;
                    let said = read_until(stream, |data| data.len() >= *bytes)?;
                    if said.len() != *bytes {
                        return Err(format!("{bytes} bytes should have answered the opening, not: {}", shown(&said)));
                    }
                }
                Ok(())
            }
            Protocol::Redis => {
                send(stream, b"PING\r\n")?;
                expect_end(stream, b"+PONG\r\n")
            }
            Protocol::JetStream | Protocol::Nats => {
                expect_end(stream, b"\r\n")?;
                send(stream, NATS_CONNECT)?;
                expect_end(stream, b"PONG\r\n")?;
                if self == Protocol::Nats {
                    return Ok(());
                }
                send(stream, format!("SUB _INBOX.{connection} 1\r\nPING\r\n").as_bytes())?;
                expect_end(stream, b"PONG\r\n")
            }
        }
    }

    /// The bytes of one round: so many messages whose payloads differ, and what asks for their answers.
    pub fn round(self, shape: &Shape, connection: usize) -> Vec<u8> {
        let Shape { topic, size, .. } = shape;
        match self {
            Protocol::Kafka => return kafka::produce(shape, connection),
            Protocol::Script(script) => return script.request.clone(),
            _ => {}
        }
        let mut out = Vec::new();
        for payload in payloads(*size, shape.messages) {
            let head = match self {
                Protocol::Blipmq => {
                    let length = (topic.len() as u16).to_be_bytes();
                    out.extend(frame(PUBLISH, 0, &[&[1], &length, topic.as_bytes(), &payload]));
                    continue;
                }
                Protocol::Flymq => {
                    out.extend(fly::produce(shape, &payload, connection));
                    continue;
                }
                Protocol::Amqp => {
                    out.extend(amqp::publish(topic, &payload));
                    continue;
                }
                Protocol::Redis => {
                    format!("*5\r\n$4\r\nXADD\r\n${}\r\n{topic}\r\n$1\r\n*\r\n$1\r\nd\r\n${size}\r\n", topic.len())
                }
                Protocol::JetStream => format!("PUB {topic} _INBOX.{connection} {size}\r\n"),
                Protocol::Nats => format!("PUB {topic} {size}\r\n"),
                Protocol::Kafka | Protocol::Script(_) => unreachable!("these are made above, in one piece"),
            };
            out.extend(head.as_bytes());
            out.extend(&payload);
            out.extend(b"\r\n");
        }
        match self {
            Protocol::Blipmq => out.extend(frame(PING, 7, &[])),
            Protocol::Nats => out.extend(b"PING\r\n"),
            _ => {}
        }
        out
    }
}

fn frame(kind: u8, correlation: u64, parts: &[&[u8]]) -> Vec<u8> {
    let payload = parts.concat();
    let mut out = ((9 + payload.len()) as u32).to_be_bytes().to_vec();
    out.push(kind);
    out.extend(correlation.to_be_bytes());
    out.extend(payload);
    out
}

/// The payload of quintet.bench.generators.payload_of: letters without structure, the same every time.
fn payload_of(size: usize) -> Vec<u8> {
    let mut state: u64 = 0x9E37_79B9;
    let mut letter = || {
        state = (state * 1_103_515_245 + 12345) & 0x7FFF_FFFF;
        b'a' + ((state >> 16) % 26) as u8
    };
    (0..size).map(|_| letter()).collect()
}

/// So many payloads whose first bytes differ.
pub fn payloads(size: usize, count: usize) -> impl Iterator<Item = Vec<u8>> {
    let plain = payload_of(size);
    (0..count).map(move |number| {
        let mut payload = plain.clone();
        for (place, byte) in payload.iter_mut().take(VARIED_BYTES).enumerate() {
            *byte = b'a' + (number >> (4 * place) & 15) as u8;
        }
        payload
    })
}

pub fn shown(data: &[u8]) -> String {
    String::from_utf8_lossy(&data[..data.len().min(200)]).escape_default().to_string()
}

fn send(stream: &mut TcpStream, data: &[u8]) -> Result<(), String> {
    stream.write_all(data).map_err(|error| format!("handshake not sent: {error}"))
}

/// Whether a BlipMQ handshake already has an answer that is no ACK.
fn refused(data: &[u8]) -> bool {
    data.len() > 4 && data[4] != ACK || data.len() > ACK_BYTES + 4 && data[ACK_BYTES + 4] != ACK
}

fn read_until(stream: &mut TcpStream, done: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>, String> {
    let mut data = Vec::new();
    let mut piece = [0; 4096];
    while !done(&data) {
        let got = stream.read(&mut piece).map_err(|error| format!("no answer to the handshake: {error}"))?;
        if got == 0 || data.len() > HANDSHAKE_BYTES_MAX {
            return Err(format!("the handshake ended without its answer, after: {}", shown(&data)));
        }
        data.extend(&piece[..got]);
    }
    Ok(data)
}

fn expect_end(stream: &mut TcpStream, end: &[u8]) -> Result<(), String> {
    read_until(stream, |data| data.ends_with(end)).map(drop)
}

/// Counts the answers of one connection as bytes come in, in whatever pieces.
pub struct Answers {
    protocol: Protocol,
    rest: Vec<u8>, // the start of an answer that is not whole yet
    confirmed: amqp::Confirmed,
}

impl Answers {
    pub fn new(protocol: Protocol) -> Answers {
        Answers { protocol, rest: Vec::new(), confirmed: amqp::Confirmed::default() }
    }

    /// How many answers became whole with this piece; Err with the server's words if one is a refusal.
    pub fn feed(&mut self, piece: &[u8]) -> Result<usize, String> {
        if self.rest.is_empty() {
            let (count, used) = self.count(piece)?;
            self.rest.extend_from_slice(&piece[used..]);
            return Ok(count);
        }
        let mut data = std::mem::take(&mut self.rest);
        data.extend_from_slice(piece);
        let (count, used) = self.count(&data)?;
        data.drain(..used);
        self.rest = data;
        Ok(count)
    }

    /// (whole answers, bytes they took)
    fn count(&mut self, data: &[u8]) -> Result<(usize, usize), String> {
        let (mut count, mut used) = (0, 0);
        while used < data.len() {
            let ahead = &data[used..];
            let Some((answers, bytes)) = (match self.protocol {
                Protocol::Blipmq => pong(ahead)?,
                Protocol::Redis => redis(ahead)?,
                Protocol::JetStream | Protocol::Nats => nats(ahead)?,
                Protocol::Flymq => fly::produced(ahead)?,
                Protocol::Kafka => kafka::produced(ahead)?,
                Protocol::Amqp => self.confirmed.feed(ahead)?,
                Protocol::Script(script) => script.answered(ahead)?,
            }) else {
                break;
            };
            count += answers;
            used += bytes;
        }
        Ok((count, used))
    }
}

/// One item at the start of data: (answers in it, its bytes), None if it is not whole yet, Err if it is a refusal.
pub type Item = Result<Option<(usize, usize)>, String>;

fn pong(data: &[u8]) -> Item {
    let seen = data.len().min(HEAD_BYTES);
    if data[..seen] != PONG[..seen] {
        return Err(format!("the server sent no PONG but: {}", shown(data)));
    }
    Ok((seen == HEAD_BYTES).then_some((1, HEAD_BYTES)))
}

fn line(data: &[u8], from: usize) -> Result<Option<usize>, String> {
    match data[from..].iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n') {
        Some(end) => Ok(Some(from + end + 1)),
        None if data.len() - from >= LINE_BYTES_MAX => Err(format!("an answer without an end: {}", shown(data))),
        None => Ok(None),
    }
}

/// `$15\r\n1700000000000-0\r\n`
fn redis(data: &[u8]) -> Item {
    if data[0] != b'$' {
        return Err(format!("the server sent no entry id but: {}", shown(data)));
    }
    let Some(body) = line(data, 0)? else { return Ok(None) };
    Ok(line(data, body)?.map(|end| (1, end)))
}

/// `MSG _INBOX.0 1 28\r\n{"stream":"BENCH","seq":1}\r\n`, or `PONG\r\n`; the server's own `PING\r\n` counts nothing.
fn nats(data: &[u8]) -> Item {
    let Some(body) = line(data, 0)? else { return Ok(None) };
    match &data[..body] {
        b"PONG\r\n" => Ok(Some((1, body))),
        b"PING\r\n" => Ok(Some((0, body))),
        head if head.starts_with(b"MSG ") => {
            let Some(end) = line(data, body)? else { return Ok(None) };
            let has = |word: &[u8]| data[body..end].windows(word.len()).any(|part| part == word);
            if has(b"\"error\"") || !has(b"\"seq\"") {
                return Err(format!("the stream did not store a message: {}", shown(&data[..end])));
            }
            Ok(Some((1, end)))
        }
        _ => Err(format!("the server sent no acknowledgement but: {}", shown(data))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDIS: &[u8] = b"$15\r\n1700000000000-0\r\n$15\r\n1700000000000-1\r\n";
    const STORED: &[u8] =
        b"MSG _INBOX.0 1 28\r\n{\"stream\":\"B\",\"seq\":1}\r\nPING\r\nMSG _INBOX.0 1 2\r\n{\"seq\":2}\r\n";

    #[test]
    fn answers_are_counted_in_whatever_pieces_they_come() {
        let pongs = [PONG, PONG].concat();
        for (protocol, data) in
            [(Protocol::Redis, REDIS), (Protocol::JetStream, STORED), (Protocol::Blipmq, &pongs[..])]
        {
            for size in 1..=data.len() {
                let mut answers = Answers::new(protocol);
                let count: usize = data.chunks(size).map(|piece| answers.feed(piece).unwrap()).sum();
                assert_eq!((count, answers.rest.len()), (2, 0));
            }
        }
    }

    #[test]
    fn refusals_are_errors() {
        let nack = frame(6, 0, &[&[1, 0xF4, 0, 4], b"full"]);
        for (protocol, data) in [
            (Protocol::Redis, &b"-ERR no\r\n"[..]),
            (Protocol::JetStream, b"MSG _INBOX.0 1 9\r\n{\"error\":{\"code\":503},\"seq\":0}\r\n"),
            (Protocol::JetStream, b"-ERR 'no'\r\n"),
            (Protocol::Blipmq, &nack),
        ] {
            assert!(Answers::new(protocol).feed(data).is_err());
        }
    }
}
