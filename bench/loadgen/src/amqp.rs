//! AMQP 0-9-1 as RabbitMQ speaks it: a connection with one channel in confirm mode, a quorum queue, persistent messages to
//! it through the default exchange, and the confirms. A confirm of a quorum queue comes when a majority has the message
//! on its disk; with one node that is this one.
//!
//!     frame    u8 type | u16 channel | u32 size | payload | 0xCE                               (big-endian)
//!     method   u16 class | u16 method | arguments        (type 1)
//!     header   u16 class | u16 0 | u64 body size | u16 flags | properties        (type 2), then the body (type 3)

use crate::wire::shown;
use std::collections::BTreeSet;

pub const HEAD_BYTES: usize = 7;
const END: u8 = 0xCE;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const FRAME_BYTES_MAX: u32 = 131_072;
const CHANNELS_MAX: u16 = 2047;
const PERSISTENT: [u8; 3] = [0x10, 0, 2]; // the flag of delivery-mode, and its value
const DURABLE: u8 = 2;
const ACK: [u8; 4] = [0, 60, 0, 80];
pub const PROTOCOL: &[u8] = b"AMQP\0\0\x09\x01";

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend(channel.to_be_bytes());
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(payload);
    out.push(END);
    out
}

fn method(channel: u16, class: u16, number: u16, arguments: &[&[u8]]) -> Vec<u8> {
    frame(METHOD, channel, &[&class.to_be_bytes(), &number.to_be_bytes(), &arguments.concat()[..]].concat())
}

fn short(text: &str) -> Vec<u8> {
    [&[text.len() as u8], text.as_bytes()].concat()
}

fn long(data: &[u8]) -> Vec<u8> {
    [&(data.len() as u32).to_be_bytes()[..], data].concat()
}

/// What a client says when it opens, each with the class and method that answer it.
pub fn opening(queue: &str) -> Vec<(Vec<u8>, [u8; 4])> {
    let limits = [&CHANNELS_MAX.to_be_bytes()[..], &FRAME_BYTES_MAX.to_be_bytes(), &[0; 2]].concat();
    let start_ok = [&long(&[])[..], &short("PLAIN"), &long(b"\0guest\0guest"), &short("en_US")].concat();
    let tuned = [method(0, 10, 31, &[&limits]), method(0, 10, 40, &[&short("/"), &[0, 0]])].concat();
    let quorum = long(&[&short("x-queue-type")[..], b"S", &long(b"quorum")].concat());
    let declare: [&[u8]; 4] = [&[0; 2], &short(queue), &[DURABLE], &quorum];
    vec![
        (PROTOCOL.to_vec(), [0, 10, 0, 10]),
        (method(0, 10, 11, &[&start_ok]), [0, 10, 0, 30]),
        (tuned, [0, 10, 0, 41]),
        (method(1, 20, 10, &[&[0]]), [0, 20, 0, 11]),
        (method(1, 50, 10, &declare), [0, 50, 0, 11]),
        (method(1, 85, 10, &[&[0]]), [0, 85, 0, 11]),
    ]
}

/// The bytes of the frame at the start of data, if all of it is there.
pub fn whole(data: &[u8]) -> Option<usize> {
    let size = u32::from_be_bytes(data.get(3..HEAD_BYTES)?.try_into().ok()?) as usize;
    (data.len() > HEAD_BYTES + size).then_some(HEAD_BYTES + size + 1)
}

pub fn answered_by(said: &[u8], wanted: [u8; 4]) -> Result<(), String> {
    match said.get(HEAD_BYTES..HEAD_BYTES + 4) {
        Some(found) if found == wanted => Ok(()),
        _ => Err(format!("RabbitMQ did not answer with {wanted:?} but: {}", shown(said))),
    }
}

pub fn publish(queue: &str, payload: &[u8]) -> Vec<u8> {
    let about = [&[0, 60, 0, 0][..], &(payload.len() as u64).to_be_bytes(), &PERSISTENT].concat();
    let to: [&[u8]; 4] = [&[0; 2], &short(""), &short(queue), &[0]];
    [method(1, 60, 40, &to), frame(HEADER, 1, &about), frame(BODY, 1, payload)].concat()
}

/// Which messages of a connection are confirmed: all up to a number, and some above it.
#[derive(Default)]
pub struct Confirmed {
    up_to: u64,
    above: BTreeSet<u64>,
}

impl Confirmed {
    fn take(&mut self, tag: u64, multiple: bool) -> usize {
        if !multiple {
            let new = tag > self.up_to && self.above.insert(tag);
            while self.above.remove(&(self.up_to + 1)) {
                self.up_to += 1;
            }
            return usize::from(new);
        }
        let above = self.above.split_off(&(tag + 1));
        let known = std::mem::replace(&mut self.above, above).len() as u64;
        let new = tag.saturating_sub(self.up_to).saturating_sub(known);
        self.up_to = self.up_to.max(tag);
        new as usize
    }

    /// (messages confirmed by the frame at the start of data, its bytes), None if it is not whole yet.
    pub fn feed(&mut self, data: &[u8]) -> Result<Option<(usize, usize)>, String> {
        let Some(bytes) = whole(data) else { return Ok(None) };
        if data[0] == HEARTBEAT {
            return Ok(Some((0, bytes)));
        }
        match data[HEAD_BYTES..bytes - 1] {
            [0, 60, 0, 80, a, b, c, d, e, f, g, h, multiple] if data[0] == METHOD => {
                let tag = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
                Ok(Some((self.take(tag, multiple & 1 == 1), bytes)))
            }
            _ => Err(format!("RabbitMQ did not confirm ({ACK:?}) but said: {}", shown(&data[..bytes]))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(tag: u64, multiple: u8) -> Vec<u8> {
        method(1, 60, 80, &[&tag.to_be_bytes(), &[multiple]])
    }

    #[test]
    fn confirms_are_counted_once_each() {
        let mut seen = Confirmed::default();
        for (tag, multiple, new) in [(1, 0, 1), (3, 0, 1), (4, 1, 2), (4, 1, 0), (6, 0, 1), (5, 0, 1), (9, 1, 3)] {
            let data = ack(tag, multiple);
            assert_eq!(seen.feed(&data[..data.len() - 1]), Ok(None));
            assert_eq!(seen.feed(&data), Ok(Some((new, data.len()))));
        }
        assert_eq!(seen.feed(&frame(HEARTBEAT, 0, &[])), Ok(Some((0, 8))));
    }

    #[test]
    fn a_refusal_is_an_error() {
        let nack = method(1, 60, 120, &[&1u64.to_be_bytes(), &[0]]);
        assert!(Confirmed::default().feed(&nack).is_err());
        assert!(answered_by(&nack, [0, 50, 0, 11]).is_err());
    }
}
