//! Appends the acknowledged publishes of a Felix read to one topic in memory, and answers them, without Python in between.
//!
//! All of a read or nothing: whoever is told None finds no record appended, and the session acts on the read itself. A publish in JSON is
//! written as the body of 0x0009, so both forms are judged and stored by the same code. What rights and limits allow is Python's to know,
//! before and behind the call. No I/O, no clock. `pure_felix_append.py` is the same in Python, and the specification.

use crate::felix::{self, Front, Group, Next};
use crate::felix_json::{Cursor, once, put_decimal};
use crate::felix_py::{frame_max, origin_fits};
use crate::tails::Tails;
use crate::{Held, refuse};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::borrow::Cow;

const ACKED: u16 = felix::BATCH | felix::ACKED;
const FRONT: Front = Front { acked: true, keyed: false };
const PER_MESSAGE: u8 = 1;
const PARTITION_SHIFT: u32 = 48; // of an offset on the wire
const ACK_OFFSET: u16 = 0x1000; // a flag of the answer: it has an offset
const ANSWER_BYTES: usize = 80; // no answer is longer

// -- a publish in JSON ------------------------------------------------------------------------------------------------

const NO_DIGIT: u8 = 0xFF;
static DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut i = 0;
    while i < alphabet.len() {
        digits[alphabet[i] as usize] = i as u8;
        i += 1;
    }
    digits
};

/// Appends what a base64 text stands for. None if it is not written as everybody writes it: padded, without bits left over.
fn take_base64(out: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    if text.len() % 4 != 0 {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|b| **b == b'=').count();
    let digits = &text[..text.len() - padding];
    let (whole, last) = digits.split_at(digits.len() / 4 * 4);
    let mut wrong = 0;
    for four in whole.chunks_exact(4) {
        let [a, b, c, d] = [four[0], four[1], four[2], four[3]].map(|byte| DIGITS[usize::from(byte)]);
        wrong |= a | b | c | d;
        out.extend([a << 2 | (b >> 4 & 3), b << 4 | (c >> 2 & 15), c << 6 | d & 63]);
    }
    if !last.is_empty() {
        let [a, b, c] = [0, 1, 2].map(|i| last.get(i).map_or(0, |byte| DIGITS[usize::from(*byte)]));
        let left = if last.len() == 2 { b & 15 } else { c & 3 };
        wrong |= a | b | c | if left == 0 { 0 } else { NO_DIGIT };
        out.extend(&[a << 2 | (b >> 4 & 3), b << 4 | (c >> 2 & 15)][..last.len() - 1]);
    }
    (wrong & 0x80 == 0).then_some(())
}

/// A plain `publish` that asks for an answer, as the body of 0x0009. None: it is something else, and Python reads it.
fn plain_publish(d: &[u8]) -> Option<Vec<u8>> {
    let mut cursor = Cursor::new(d);
    cursor.pass(b'{')?;
    let mut names: [Option<&[u8]>; 3] = [None; 3];
    let (mut kind, mut payload, mut request_id, mut ack) = (None, None, None, None);
    loop {
        let name = cursor.plain()?;
        cursor.pass(b':')?;
        match name {
            b"type" => once(&mut kind, cursor.plain()?)?,
            b"tenant_id" => once(&mut names[0], cursor.plain()?)?,
            b"namespace" => once(&mut names[1], cursor.plain()?)?,
            b"stream" => once(&mut names[2], cursor.plain()?)?,
            b"payload" => once(&mut payload, cursor.plain()?)?,
            b"ack" => once(&mut ack, cursor.plain()?)?,
            b"request_id" => {
                cursor.blank()?;
                once(&mut request_id, cursor.whole()?)?;
            }
            _ => return None,
        }
        match cursor.blank()? {
            b',' => cursor.at += 1,
            b'}' => break,
            _ => return None,
        }
    }
    cursor.at += 1;
    let is_publish = kind == Some(b"publish") && matches!(ack, Some(b"per_message" | b"per_batch"));
    if cursor.blank().is_some() || !is_publish {
        return None;
    }
    let payload = payload?;
    let mut body = Vec::with_capacity(d.len());
    body.extend(std::str::from_utf8(request_id?).ok()?.parse::<u64>().ok()?.to_be_bytes());
    body.push(PER_MESSAGE);
    for name in names {
        let name = name?;
        body.extend(u16::try_from(name.len()).ok()?.to_be_bytes());
        body.extend(name);
    }
    body.extend(1u32.to_be_bytes());
    let at = body.len();
    body.extend([0; 4]);
    take_base64(&mut body, payload)?;
    let size = (body.len() - at - 4) as u32;
    body[at..at + 4].copy_from_slice(&size.to_be_bytes());
    Some(body)
}

// -- a read -----------------------------------------------------------------------------------------------------------

/// The publishes of a read, each as the body of 0x0009, and whether it came as JSON. None: something else is among them.
fn bodies(d: &[u8], frame_bytes_max: usize) -> Option<Vec<(Cow<'_, [u8]>, bool)>> {
    let (mut found, mut pos) = (Vec::new(), 0);
    while pos < d.len() {
        let Next::Frame { flags, end } = felix::next_frame(d, pos, frame_bytes_max) else { return None };
        let payload = &d[pos + felix::HEADER_BYTES..end];
        found.push(match flags {
            ACKED => (Cow::Borrowed(payload), false),
            0 => (Cow::Owned(plain_publish(payload)?), true),
            _ => return None,
        });
        pos = end;
    }
    Some(found)
}

fn put_answer(out: &mut Vec<u8>, request_id: u64, offset: Option<u64>, json: bool) {
    let start = out.len();
    out.extend([0; felix::HEADER_BYTES]);
    let mut flags = 0;
    if json {
        out.extend(b"{\"type\":\"publish_ok\",\"request_id\":");
        put_decimal(out, request_id);
        if let Some(offset) = offset {
            out.extend(b",\"offset\":");
            put_decimal(out, offset);
        }
        out.push(b'}');
    } else {
        out.push(0);
        out.extend(request_id.to_be_bytes());
        out.extend([0; 2]);
        flags = felix::ACK;
        if let Some(offset) = offset {
            out.extend(offset.to_be_bytes());
            flags |= ACK_OFFSET;
        }
    }
    let length = out.len() - start - felix::HEADER_BYTES;
    out[start..start + felix::HEADER_BYTES].copy_from_slice(&felix::header(flags, length));
}

/// Answers, bytes of the batches, the last request_id, whether that one came as JSON.
type Appended<'py> = (Bound<'py, PyBytes>, usize, u64, bool);

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn felix_append<'py>(
    py: Python<'py>,
    tails: &Bound<'py, Tails>,
    handle: u64,
    target: &[u8],
    data: &Bound<'py, PyAny>,
    frame_bytes_max: i64,
    origin: &[u8],
    now: i64,
    offsets: bool,
) -> PyResult<Option<Appended<'py>>> {
    let held = Held::new(data)?;
    let frame_bytes_max = frame_max(frame_bytes_max)?;
    origin_fits(origin, now)?;
    let mut tails = tails.try_borrow_mut()?;
    if !tails.takes(handle, -1) {
        return Ok(None);
    }
    let Some(bodies) = bodies(held.bytes(), frame_bytes_max) else { return Ok(None) };
    let mut groups = Vec::with_capacity(bodies.len());
    for (body, json) in &bodies {
        let Ok(group) = Group::parse(body, 0, body.len(), FRONT, target) else { return Ok(None) };
        if group.target != target || group.count == 0 {
            return Ok(None);
        }
        let plan = group.plan(origin).map_err(refuse)?;
        groups.push((body, group, plan, *json));
    }
    let Some(last) = groups.last().map(|(_, group, _, json)| (group.request_id.unwrap_or(0), *json)) else {
        return Ok(None);
    };
    let (mut answers, mut bytes) = (Vec::with_capacity(ANSWER_BYTES * groups.len()), 0);
    for (body, group, plan, json) in &groups {
        let (count, size) = (group.count as u64, plan.0.length);
        let fill = |out: &mut [u8]| group.fill(body, plan, origin, out);
        let mut offset = None;
        if offsets {
            let (partition, base, _) = tails.publish_told(py, handle, -1, count, now, size, fill)?;
            offset = Some((partition as u64) << PARTITION_SHIFT | base);
        } else if !tails.publish(py, handle, count, size, fill)? {
            return Err(refuse("the topic was closed while it was appended to"));
        }
        bytes += size;
        put_answer(&mut answers, group.request_id.unwrap_or(0), offset, *json);
    }
    Ok(Some((PyBytes::new(py, &answers), bytes, last.0, last.1)))
}
