//! FlyMQ, document dialect: AUTH, PRODUCE, FETCH and their answers. Written from the protocol's document, not from the
//! broker's codec: a fault there must not hide itself here.
//!
//!     0xAF | 1 | op | flags (1: binary) | u32 length | payload                              (big-endian)
//!     AUTH     user:str16 password:str16                                answered by 0x71: u8 success ...
//!     PRODUCE  topic:str16 key:bytes32 value:bytes32 partition:i32      answered by itself, with the offset
//!     FETCH    topic:str16 partition:i32 offset:u64 max:i32             u32 count, messages, u64 next offset

use crate::wire::{Item, Shape, shown};

pub const HEAD_BYTES: usize = 8;
const MAGIC: [u8; 2] = [0xAF, 1];
const BINARY: u8 = 1;
const PRODUCE: u8 = 0x01;
const FETCH: u8 = 0x07;
const AUTH: u8 = 0x70;
const AUTH_RESPONSE: u8 = 0x71;
const USER: &str = "admin"; // of a broker started with --dev
const PASSWORD: &str = "admin";
const ANY: i32 = -1;

fn frame(op: u8, parts: &[&[u8]]) -> Vec<u8> {
    let payload = parts.concat();
    let mut out = vec![MAGIC[0], MAGIC[1], op, BINARY];
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(payload);
    out
}

fn str16(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

pub fn auth() -> Vec<u8> {
    frame(AUTH, &[&str16(USER), &str16(PASSWORD)])
}

/// The bytes of the frame at the start of data, if all of it is there.
pub fn whole(data: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(data.get(4..HEAD_BYTES)?.try_into().ok()?) as usize;
    (data.len() >= HEAD_BYTES + length).then_some(HEAD_BYTES + length)
}

pub fn welcomed(said: &[u8]) -> Result<(), String> {
    match said {
        [0xAF, 1, AUTH_RESPONSE, _, _, _, _, _, 1, ..] => Ok(()),
        _ => Err(format!("AUTH as {USER} was refused: {}", shown(said))),
    }
}

/// The name of topic `number` of several.
pub fn named(topic: &str, number: usize) -> String {
    format!("{topic}.{number:05}")
}

pub fn produce(shape: &Shape, value: &[u8], connection: usize) -> Vec<u8> {
    let topic = if shape.run > 0 { named(&shape.topic, 0) } else { shape.topic.clone() };
    let partition = if shape.partitions > 1 { (connection % shape.partitions) as i32 } else { ANY };
    let size = (value.len() as u32).to_be_bytes();
    frame(PRODUCE, &[&str16(&topic), &[0; 4], &size, value, &partition.to_be_bytes()])
}

pub fn fetch(topic: &str, partition: usize, offset: u64, most: usize) -> Vec<u8> {
    let (partition, most) = ((partition as i32).to_be_bytes(), (most as i32).to_be_bytes());
    frame(FETCH, &[&str16(topic), &partition, &offset.to_be_bytes(), &most])
}

/// The answer to one PRODUCE.
pub fn produced(data: &[u8]) -> Item {
    if data.len() > 2 && (data[..2] != MAGIC || data[2] != PRODUCE) {
        return Err(format!("the server did not answer PRODUCE but: {}", shown(data)));
    }
    Ok(whole(data).map(|bytes| (1, bytes)))
}

/// (messages in the answer to one FETCH, its bytes), from its first HEAD_BYTES + 4 bytes.
pub fn fetched(head: &[u8; HEAD_BYTES + 4]) -> Result<(usize, usize), String> {
    if head[..2] != MAGIC || head[2] != FETCH {
        return Err(format!("the server did not answer FETCH but: {}", shown(head)));
    }
    let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
    Ok((number(HEAD_BYTES), HEAD_BYTES + number(4)))
}

/// Turns a round into the next one where a run of messages goes to one partition and the next run to another: names of
/// one length and partitions are written over those of the round before, which costs next to nothing.
pub struct Turning {
    run: usize,
    partitions: usize,
    pairs: usize,
    done: usize, // messages sent so far, as if this connection had begun at pair 0
    stride: usize,
    digits_at: usize,
}

impl Turning {
    /// Connections begin at places that lie evenly among all partitions.
    pub fn new(shape: &Shape, round: &[u8], connection: usize, connections: usize) -> Turning {
        let pairs = shape.topics * shape.partitions;
        Turning {
            run: shape.run,
            partitions: shape.partitions,
            pairs,
            done: connection * pairs / connections * shape.run,
            stride: round.len() / shape.messages,
            digits_at: HEAD_BYTES + 2 + shape.topic.len() + 1,
        }
    }

    pub fn turn(&mut self, round: &mut [u8]) {
        for message in round.chunks_exact_mut(self.stride) {
            let pair = self.done / self.run % self.pairs;
            let mut topic = pair / self.partitions;
            for place in (0..5).rev() {
                message[self.digits_at + place] = b'0' + (topic % 10) as u8;
                topic /= 10;
            }
            let end = message.len();
            message[end - 4..].copy_from_slice(&((pair % self.partitions) as i32).to_be_bytes());
            self.done += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Protocol, payloads};

    #[test]
    fn turns_visit_every_partition_for_a_run() {
        let shape = Shape { topic: "t".into(), size: 8, messages: 6, partitions: 2, topics: 2, run: 3 };
        let mut round = Protocol::Flymq.round(&shape, 0);
        let mut turning = Turning::new(&shape, &round, 1, 2);
        let payloads: Vec<_> = payloads(8, 6).collect();
        for places in [[(1, 0), (1, 1)], [(0, 0), (0, 1)], [(1, 0), (1, 1)]] {
            turning.turn(&mut round);
            let mut wanted = Vec::new();
            for (number, payload) in payloads.iter().enumerate() {
                let (topic, partition): (usize, i32) = places[number / 3];
                let partition = partition.to_be_bytes();
                wanted.extend(frame(
                    PRODUCE,
                    &[&str16(&named("t", topic)), &[0; 4], &8u32.to_be_bytes(), payload, &partition],
                ));
            }
            assert_eq!(round, wanted);
        }
    }
}
