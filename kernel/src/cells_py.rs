//! Frames that go to one cell: the function `cell_run` of `_native.pyi`. Reads lengths and names, and copies nothing.
//!
//! Only what comes by the thousand is judged here: publishes to plain names. At anything else the run ends, and Python says where it
//! goes (src/quintet/protocols/*/routing.py). The interpreter lock is held throughout; no I/O, no clock, no state.

use crate::fly::fnv1a;
use crate::{Held, range};
use pyo3::prelude::*;

const BLIP_1: u8 = 0; // BlipMQ, version 1
const BLIP_2: u8 = 1; // ... and later: a publish may have a time to live
const FLY: u8 = 2;
const FAST: u8 = 3;

const BLIP_HEAD: usize = 13;
const BLIP_LENGTH_MIN: usize = 9;
const BLIP_PUBLISH: u8 = 3;
const BLIP_PING: u8 = 7;
const BLIP_TTL: u8 = 0x80;
const BLIP_TTL_BYTES: usize = 4;
const FLY_HEAD: usize = 8;
const FLY_MAGIC: u8 = 0xAF;
const FLY_VERSION: u8 = 1;
const FLY_PRODUCE: u8 = 1;
const FLY_COMPRESSED: u8 = 0x0E;
const FAST_PUBLISH: u8 = 3;
const FAST_TAIL: usize = 8; // topic, length
const SPREAD: u32 = 0x9E37_79B1;

/// What says where a frame goes.
enum Target<'a> {
    Name(&'a [u8]),
    Number(u32),
    HomeNumber(u32), // only if it goes to our own cell: its token is an empty one
    Along,           // where the frame before goes
}

fn u16_at(d: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(d.get(at..at + 2)?.try_into().ok()?)))
}

fn u32_at(d: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(d.get(at..at + 4)?.try_into().ok()?))
}

fn blip(d: &[u8], at: usize, most: usize, with_ttl: bool) -> Option<(Target<'_>, usize)> {
    let length = u32_at(d, at)? as usize;
    if !(BLIP_LENGTH_MIN..=most).contains(&length) {
        return None;
    }
    let frame = d.get(at..at + 4 + length)?;
    let end = at + 4 + length;
    match frame[4] {
        BLIP_PING => Some((Target::Along, end)),
        BLIP_PUBLISH => {
            let ttl = with_ttl && frame.get(BLIP_HEAD)? & BLIP_TTL != 0;
            let start = BLIP_HEAD + 1 + if ttl { BLIP_TTL_BYTES } else { 0 };
            let size = u16_at(frame, start)?;
            Some((Target::Name(frame.get(start + 2..start + 2 + size)?), end))
        }
        _ => None,
    }
}

fn fly(d: &[u8], at: usize, most: usize) -> Option<(Target<'_>, usize)> {
    let length = u32_at(d, at + 4)? as usize;
    let head = d.get(at..at + FLY_HEAD)?;
    if head[..3] != [FLY_MAGIC, FLY_VERSION, FLY_PRODUCE] || head[3] & FLY_COMPRESSED != 0 || length > most {
        return None;
    }
    let frame = d.get(at..at + FLY_HEAD + length)?;
    let size = u16_at(frame, FLY_HEAD)?;
    Some((Target::Name(frame.get(FLY_HEAD + 2..FLY_HEAD + 2 + size)?), at + FLY_HEAD + length))
}

fn fast<'a>(d: &'a [u8], at: usize, most: usize, token: &[u8]) -> Option<(Target<'a>, usize)> {
    if *d.get(at)? != FAST_PUBLISH {
        return None;
    }
    let size = usize::from(*d.get(at + 1)?);
    let shown = d.get(at + 2..at + 2 + size)?;
    if token.is_empty() || (size != 0 && shown != token) {
        return None;
    }
    let tail = at + 2 + size;
    let number = u32_at(d, tail)?;
    let length = u32_at(d, tail + 4)? as usize;
    let end = tail + FAST_TAIL + length;
    if length > most || end > d.len() {
        return None;
    }
    Some((if size == 0 { Target::HomeNumber(number) } else { Target::Number(number) }, end))
}

fn spread(number: u32, count: u32) -> i32 {
    ((number.wrapping_mul(SPREAD) >> 16) % count) as i32
}

/// The cell of a name that no rule but the hash speaks of.
fn plain(name: &[u8], count: u32, suffix: &[u8]) -> Option<i32> {
    let ruled = name.is_empty()
        || name.starts_with(b"__")
        || name.contains(&b'/')
        || (!suffix.is_empty() && name.ends_with(suffix));
    if ruled { None } else { Some(spread(fnv1a(name), count)) }
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn cell_run(
    kind: u8,
    view: &Bound<'_, PyAny>,
    position: i64,
    bytes_max: u32,
    count: u32,
    own: i32,
    suffix: &[u8],
    token: &[u8],
) -> PyResult<(i32, usize)> {
    let held = Held::new(view)?;
    let d = held.bytes();
    let (mut at, _) = range(position, d.len() as i64, d.len())?;
    let most = bytes_max as usize;
    let mut chosen = -1;
    let mut last: (&[u8], i32) = (b"", -1);
    while at < d.len() && count > 0 {
        let found = match kind {
            BLIP_1 | BLIP_2 => blip(d, at, most, kind == BLIP_2),
            FLY => fly(d, at, most),
            FAST => fast(d, at, most, token),
            _ => None,
        };
        let Some((target, end)) = found else { break };
        let cell = match target {
            Target::Along if chosen >= 0 => Some(chosen),
            Target::Along => None,
            Target::Number(number) => Some(spread(number, count)),
            Target::HomeNumber(number) => Some(spread(number, count)).filter(|cell| *cell == own),
            Target::Name(name) if last.1 >= 0 && name == last.0 => Some(last.1),
            Target::Name(name) => plain(name, count, suffix).inspect(|cell| last = (name, *cell)),
        };
        match cell {
            Some(cell) if chosen < 0 || cell == chosen => chosen = cell,
            _ => break,
        }
        at = end;
    }
    Ok((chosen, at))
}
