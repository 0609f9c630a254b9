//! Kafka: Produce version 3 with acks=1, one record batch of format 2 per request; and what answers it.
//!
//!     request   i32 size | i16 key 0 | i16 version 3 | i32 correlation | str client
//!               | i16 -1 (no transaction) | i16 acks | i32 timeout | i32 1 | str topic | i32 1 | i32 partition | bytes batch
//!     answer    i32 size | i32 correlation | i32 1 | str topic | i32 1 | i32 partition | i16 error | i64 offset ...
//!     batch     i64 base | i32 length | i32 epoch | i8 2 | u32 CRC-32C of what follows | i16 attributes | i32 last delta
//!               | i64 first time | i64 last time | i64 producer | i16 epoch | i32 sequence | i32 count | records
//!     record    varint length | i8 0 | varint time delta | varint offset delta | varint key -1 | varint size | value | varint 0

use crate::wire::{Item, Shape, payloads, shown};
use std::time::{SystemTime, UNIX_EPOCH};

const PRODUCE: i16 = 0;
const VERSION: i16 = 3;
const ACKS: i16 = 1;
const TIMEOUT_MS: i32 = 30_000;
const CORRELATION: i32 = 7;
const CLIENT: &str = "loadgen";
const ANSWER_BYTES_MAX: usize = 64 * 1024;

fn crc32c(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in data {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0x82F6_3B78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat()
}

/// Zig-zag, seven bits a byte, low ones first.
fn varint(value: i64, out: &mut Vec<u8>) {
    let mut left = (value << 1 ^ value >> 63) as u64;
    while left > 0x7F {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn batch(size: usize, messages: usize, now_ms: i64) -> Vec<u8> {
    let mut checked = [&0i16.to_be_bytes()[..], &(messages as i32 - 1).to_be_bytes()].concat();
    checked.extend([now_ms.to_be_bytes(), now_ms.to_be_bytes(), (-1i64).to_be_bytes()].concat());
    checked.extend((-1i16).to_be_bytes());
    checked.extend((-1i32).to_be_bytes());
    checked.extend((messages as i32).to_be_bytes());
    for (number, value) in payloads(size, messages).enumerate() {
        let mut record = vec![0];
        for field in [0, number as i64, -1, value.len() as i64] {
            varint(field, &mut record);
        }
        record.extend(value);
        varint(0, &mut record);
        varint(record.len() as i64, &mut checked);
        checked.extend(record);
    }
    let mut out = 0i64.to_be_bytes().to_vec();
    out.extend((checked.len() as i32 + 9).to_be_bytes()); // epoch, format and CRC count too
    out.extend((-1i32).to_be_bytes());
    out.push(2);
    out.extend(crc32c(&checked).to_be_bytes());
    out.extend(checked);
    out
}

pub fn produce(shape: &Shape, connection: usize) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
    let records = batch(shape.size, shape.messages, now);
    let mut body = [&PRODUCE.to_be_bytes()[..], &VERSION.to_be_bytes(), &CORRELATION.to_be_bytes()].concat();
    body.extend(string(CLIENT));
    body.extend((-1i16).to_be_bytes());
    body.extend(ACKS.to_be_bytes());
    body.extend(TIMEOUT_MS.to_be_bytes());
    body.extend(1i32.to_be_bytes());
    body.extend(string(&shape.topic));
    body.extend(1i32.to_be_bytes());
    body.extend(((connection % shape.partitions) as i32).to_be_bytes());
    body.extend((records.len() as i32).to_be_bytes());
    body.extend(records);
    [&(body.len() as i32).to_be_bytes()[..], &body].concat()
}

/// The answer to one Produce request.
pub fn produced(data: &[u8]) -> Item {
    let Some(size) = data.get(..4) else { return Ok(None) };
    let bytes = 4 + u32::from_be_bytes([size[0], size[1], size[2], size[3]]) as usize;
    if bytes > ANSWER_BYTES_MAX {
        return Err(format!("the server did not answer Produce but: {}", shown(data)));
    }
    if data.len() < bytes {
        return Ok(None);
    }
    let topic = data.get(12..14).map_or(0, |length| usize::from(u16::from_be_bytes([length[0], length[1]])));
    match data[..bytes].get(22 + topic..24 + topic) {
        Some([0, 0]) => Ok(Some((1, bytes))),
        Some(error) => Err(format!("Kafka refused with error {}", i16::from_be_bytes([error[0], error[1]]))),
        None => Err(format!("the server did not answer Produce but: {}", shown(data))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_its_published_example() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn numbers_are_those_of_their_published_examples() {
        for (value, bytes) in [(0, &[0][..]), (-1, &[1]), (1, &[2]), (150, &[0xAC, 2]), (-65, &[0x81, 1])] {
            let mut out = Vec::new();
            varint(value, &mut out);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn a_refusal_is_an_error() {
        let mut answer = [&7i32.to_be_bytes()[..], &1i32.to_be_bytes()].concat();
        answer.extend(string("t"));
        answer.extend([1i32.to_be_bytes(), 0i32.to_be_bytes()].concat());
        for (error, refused) in [(0i16, false), (3, true)] {
            let body = [&answer[..], &error.to_be_bytes(), &[0; 20]].concat();
            let data = [&(body.len() as i32).to_be_bytes()[..], &body].concat();
            assert_eq!(produced(&data).is_err(), refused);
            assert!(matches!(produced(&data[..data.len() - 1]), Ok(None)));
        }
    }
}
