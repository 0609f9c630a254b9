//! FlyMQ replies and the client's side: writing FETCH replies and those to produces out of batches, writing PRODUCE
//! requests, reading replies.
//!
//! A fetch is what competes with a file handed to the kernel's sendfile, so it counts first and then writes each byte of
//! the reply once, into memory of exactly that size. Only bytes: Python objects are `fly_py.rs`'s matter.

use crate::batch::{self, Batch, Refusal, i32_at};
use crate::blip::{be, copy_ahead};
use crate::fly::{FRAME_BYTES, MAGIC, MICROSECONDS_PER_MILLISECOND, PRODUCE, PRODUCE_RECORDS, VERSION};

const SPARE: Refusal = "batch columns do not add up: an entry lies outside its column";
/// Of a reply: count and next_offset. Of a record: the lengths of key and value, and the offset.
const FETCH_FIXED_BYTES: usize = 12;
const RECORD_FIXED_BYTES: usize = 16;
const SET_GROUP_BYTES: usize = 24;

pub struct FetchWish {
    pub offset: u64,
    pub max_records: usize,
    pub max_bytes: usize,
    pub now: i64,
    pub op: u8,
    pub flags: u8,
    pub sdk: bool,
}

/// Records first..last of a batch; those that expired are still among them.
struct Piece<'a> {
    batch: Batch<'a>,
    first: usize,
    last: usize,
}

/// A reply that can be written: all entries are checked and the size is known.
pub struct Fetch<'a> {
    wish: FetchWish,
    pieces: Vec<Piece<'a>>,
    pub count: usize,
    pub next_offset: u64,
    pub bytes: usize,
}

/// The ends of entry i of a column, or None if they lie outside it.
#[inline(always)]
fn ends(batch: &Batch, offsets: usize, limit: usize, i: usize) -> Option<(usize, usize)> {
    let (a, b) = (i32_at(batch.d, offsets + 4 * i), i32_at(batch.d, offsets + 4 * i + 4));
    (a >= 0 && a <= b && b as usize <= limit).then_some((a as usize, b as usize))
}

fn expired(batch: &Batch, i: usize, now: i64) -> bool {
    let expiry = batch.expiry(i);
    expiry != 0 && expiry <= now
}

impl<'a> Fetch<'a> {
    pub fn new(batches: &[&'a [u8]], wish: FetchWish) -> Result<Fetch<'a>, Refusal> {
        let next_offset = wish.offset;
        let mut fetch =
            Fetch { wish, pieces: Vec::new(), count: 0, next_offset, bytes: FRAME_BYTES + FETCH_FIXED_BYTES };
        for data in batches {
            if !fetch.take(Batch::open(data, 0)?)? {
                break;
            }
        }
        Ok(fetch)
    }

    /// Takes what is wanted of one batch; whether the next one is wanted too.
    fn take(&mut self, batch: Batch<'a>) -> Result<bool, Refusal> {
        let (n, base) = (batch.head.count, batch.head.base_offset);
        let below = self.wish.offset.saturating_sub(base).min(n as u64) as usize;
        let first = if batch.at.deltas == 0 {
            below
        } else {
            (0..n).find(|i| base + batch.delta(*i) >= self.wish.offset).unwrap_or(n)
        };
        let (w, values) = (batch.at, batch.value_size());
        let keys = if w.key_offsets == 0 { 0 } else { batch.size(w.key_offsets, n) };
        let most = FRAME_BYTES + self.wish.max_bytes;
        let mut last = first;
        while last < n {
            if self.count == self.wish.max_records {
                break;
            }
            if w.expiries == 0 || !expired(&batch, last, self.wish.now) {
                let (a, b) = ends(&batch, w.value_offsets, values, last).ok_or(SPARE)?;
                let mut size = RECORD_FIXED_BYTES + b - a;
                if w.key_offsets != 0 {
                    let (a, b) = ends(&batch, w.key_offsets, keys, last).ok_or(SPARE)?;
                    size += b - a;
                }
                if self.count != 0 && self.bytes + size > most {
                    break;
                }
                self.count += 1;
                self.bytes += size;
            }
            last += 1;
        }
        if last > first {
            self.next_offset = self.next_offset.max(base + batch.delta(last - 1) + 1);
        }
        if last == n {
            self.next_offset = self.next_offset.max(base + u64::from(batch.head.span));
        }
        self.pieces.push(Piece { batch, first, last });
        Ok(last == n)
    }

    /// Fills exactly `bytes` bytes.
    ///
    ///   document:  |count u32|{key_len u32|key|value_len u32|value|offset u64}...|next_offset u64|
    ///   SDKs:      |count u32|next_offset u64|{offset u64|key_len u32|key|value_len u32|value}...|
    pub fn fill(&self, out: &mut [u8]) {
        let (wish, mut at) = (&self.wish, FRAME_BYTES + 4);
        out[..4].copy_from_slice(&[MAGIC, VERSION, wish.op, wish.flags]);
        batch::put(out, 4, ((self.bytes - FRAME_BYTES) as u32).to_be_bytes());
        batch::put(out, FRAME_BYTES, (self.count as u32).to_be_bytes());
        if wish.sdk {
            batch::put(out, at, self.next_offset.to_be_bytes());
            at += 8;
        }
        for piece in &self.pieces {
            at = piece.fill(out, at, wish);
        }
        if !wish.sdk {
            batch::put(out, at, self.next_offset.to_be_bytes());
        }
    }
}

impl Piece<'_> {
    fn fill(&self, out: &mut [u8], mut at: usize, wish: &FetchWish) -> usize {
        let (batch, w, d) = (&self.batch, &self.batch.at, self.batch.d);
        let span =
            |offsets: usize, i: usize| (i32_at(d, offsets + 4 * i) as usize, i32_at(d, offsets + 4 * i + 4) as usize);
        for i in self.first..self.last {
            if w.expiries != 0 && expired(batch, i, wish.now) {
                continue;
            }
            let offset = (batch.head.base_offset + batch.delta(i)).to_be_bytes();
            if wish.sdk {
                batch::put(out, at, offset);
                at += 8;
            }
            if w.key_offsets == 0 {
                batch::put(out, at, [0; 4]);
                at += 4;
            } else {
                let (a, b) = span(w.key_offsets, i);
                at = put_bytes32(out, at, d, w.key_data + a, b - a);
            }
            let (a, b) = span(w.value_offsets, i);
            at = put_bytes32(out, at, d, w.value_data + a, b - a);
            if !wish.sdk {
                batch::put(out, at, offset);
                at += 8;
            }
        }
        at
    }
}

fn put_bytes32(out: &mut [u8], at: usize, d: &[u8], from: usize, size: usize) -> usize {
    batch::put(out, at, (size as u32).to_be_bytes());
    copy_ahead(out, at + 4, d, from, size);
    at + 4 + size
}

// -- the client's side ------------------------------------------------------------------------------------------------

/// A PRODUCE request to one topic, as far as all records share it.
pub struct Request<'a> {
    pub topic: &'a [u8],
    pub partition: i32,
    pub producer_id: u64,
    pub flags: u8,
}

impl Request<'_> {
    /// Bytes of the payload around key and value.
    pub fn fixed_bytes(&self) -> usize {
        2 + self.topic.len() + 4 + 4 + 4 + if self.producer_id == 0 { 0 } else { 12 }
    }

    /// Writes one frame at `at`; returns where it ends. out has room for it.
    pub fn put(&self, out: &mut [u8], at: usize, key: &[u8], value: &[u8], sequence: u32) -> usize {
        let length = self.fixed_bytes() + key.len() + value.len();
        batch::put(out, at, [MAGIC, VERSION, PRODUCE, self.flags]);
        batch::put(out, at + 4, (length as u32).to_be_bytes());
        batch::put(out, at + FRAME_BYTES, (self.topic.len() as u16).to_be_bytes());
        let mut to = at + FRAME_BYTES + 2;
        out[to..to + self.topic.len()].copy_from_slice(self.topic);
        to += self.topic.len();
        for part in [key, value] {
            batch::put(out, to, (part.len() as u32).to_be_bytes());
            out[to + 4..to + 4 + part.len()].copy_from_slice(part);
            to += 4 + part.len();
        }
        batch::put(out, to, self.partition.to_be_bytes());
        if self.producer_id != 0 {
            batch::put(out, to + 4, self.producer_id.to_be_bytes());
            batch::put(out, to + 12, sequence.to_be_bytes());
        }
        at + FRAME_BYTES + length
    }
}

/// Reads fields one behind the other; None where the payload is too short.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, size: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(front)
    }

    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        Some(be(self.bytes(N)?, 0))
    }

    fn u32(&mut self) -> Option<u32> {
        self.number().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.number().map(u64::from_be_bytes)
    }

    fn bytes32(&mut self) -> Option<&'a [u8]> {
        let size = self.u32()? as usize;
        self.bytes(size)
    }
}

/// (topic, partition, offset, timestamp in milliseconds) of a RecordMetadata payload.
pub fn parse_metadata(payload: &[u8]) -> Option<(&[u8], i32, u64, i64)> {
    let mut fields = Fields(payload);
    let size = u16::from_be_bytes(fields.number()?) as usize;
    let topic = fields.bytes(size)?;
    let partition = i32::from_be_bytes(fields.number()?);
    let offset = fields.u64()?;
    let timestamp = i64::from_be_bytes(fields.number()?);
    fields.bytes(8)?;
    fields.0.is_empty().then_some((topic, partition, offset, timestamp))
}

/// The records of a FETCH reply: (offset, key, value).
pub type Fetched<'a> = Vec<(u64, &'a [u8], &'a [u8])>;

/// (records, next_offset) of a FETCH reply's payload.
pub fn parse_fetch(payload: &[u8], sdk: bool) -> Option<(Fetched<'_>, u64)> {
    let mut fields = Fields(payload);
    let count = fields.u32()? as usize;
    if count > payload.len() / RECORD_FIXED_BYTES {
        return None;
    }
    let mut records = Vec::with_capacity(count);
    let mut next_offset = if sdk { fields.u64()? } else { 0 };
    for _ in 0..count {
        let mut offset = if sdk { fields.u64()? } else { 0 };
        let (key, value) = (fields.bytes32()?, fields.bytes32()?);
        if !sdk {
            offset = fields.u64()?;
        }
        records.push((offset, key, value));
    }
    if !sdk {
        next_offset = fields.u64()?;
    }
    fields.0.is_empty().then_some((records, next_offset))
}

/// The answer to a PRODUCE_RECORDS whose groups are placed: (partition, offset, records, time) of each. `order` has of each record its group
/// (`<H`), and goes out the other way round (`>H`) if there are several groups.
///
///   0      8           12
///   |head |groups u32 |{partition i32, offset u64, count u32, timestamp_ms i64}...|order_len u32|order...|
pub fn put_set_answer(out: &mut Vec<u8>, groups: &[(i32, u64, usize, i64)], order: &[u8], flags: u8) {
    let order = if groups.len() > 1 { order } else { &[] };
    let length = 4 + SET_GROUP_BYTES * groups.len() + 4 + order.len();
    out.extend([MAGIC, VERSION, PRODUCE_RECORDS, flags]);
    out.extend((length as u32).to_be_bytes());
    out.extend((groups.len() as u32).to_be_bytes());
    for (partition, offset, count, time) in groups {
        out.extend(partition.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend((*count as u32).to_be_bytes());
        out.extend(time.div_euclid(MICROSECONDS_PER_MILLISECOND).to_be_bytes());
    }
    out.extend((order.len() as u32).to_be_bytes());
    out.extend(order.chunks_exact(2).flat_map(|number| [number[1], number[0]]));
}

// -- replies to produces ----------------------------------------------------------------------------------------------

/// The replies of one group: RecordMetadata of each record of the batch, or the same error for each.
pub struct Answer<'a> {
    template: Vec<u8>,
    size: usize,
    patch: usize,
    batch: Option<Batch<'a>>,
    records: usize,
}

/// Room behind a template lets its copy have a fixed size.
const TEMPLATE_ROOM_BYTES: usize = 128;

fn entry_size(batch: &Batch, offsets: usize, i: usize) -> Result<i32, Refusal> {
    let (a, b) = (batch::i32_at(batch.d, offsets + 4 * i), batch::i32_at(batch.d, offsets + 4 * i + 4));
    if a < 0 || a > b || b as usize > batch.size(offsets, batch.head.count) { Err(SPARE) } else { Ok(b - a) }
}

fn key_size(batch: &Batch, i: usize) -> Result<i32, Refusal> {
    if batch.at.key_offsets == 0 || batch.is_null(batch.at.key_bitmap, i) {
        return Ok(-1);
    }
    entry_size(batch, batch.at.key_offsets, i)
}

impl<'a> Answer<'a> {
    ///   0      8           10
    ///   |head |topic_len  |topic...|partition i32|offset u64|timestamp i64|key_size i32|value_size i32|
    pub fn stored(topic: &[u8], partition: i32, data: &'a [u8], flags: u8) -> Result<Answer<'a>, Refusal> {
        let batch = Batch::open(data, 0)?;
        let mut out = vec![MAGIC, VERSION, PRODUCE, flags, 0, 0, 0, 0];
        out.extend((topic.len() as u16).to_be_bytes());
        out.extend(topic);
        out.extend(partition.to_be_bytes());
        let patch = out.len();
        out.extend([0; 8]);
        out.extend(batch.head.timestamp.div_euclid(MICROSECONDS_PER_MILLISECOND).to_be_bytes());
        out.extend([0; 8]);
        let size = out.len();
        batch::put(&mut out, 4, ((size - FRAME_BYTES) as u32).to_be_bytes());
        out.resize(size + TEMPLATE_ROOM_BYTES, 0);
        Ok(Answer { template: out, size, patch, batch: Some(batch), records: 0 })
    }

    pub fn refused(error: &[u8]) -> Answer<'a> {
        let mut template = error.to_vec();
        template.resize(error.len() + TEMPLATE_ROOM_BYTES, 0);
        Answer { template, size: error.len(), patch: 0, batch: None, records: 0 }
    }
}

/// Checks the order (packed `<H`) against the answers; how many bytes all replies have.
pub fn measure_answers(answers: &mut [Answer], order: &[u8]) -> Result<usize, Refusal> {
    if !order.len().is_multiple_of(2) {
        return Err("order must be whole u16 group numbers");
    }
    for number in order.chunks_exact(2) {
        let number = u16::from_le_bytes(be(number, 0)) as usize;
        answers.get_mut(number).ok_or("order names a group that is not there")?.records += 1;
    }
    let mut total = 0;
    for answer in answers {
        total += answer.records * answer.size;
        let Some(batch) = &answer.batch else { continue };
        if answer.records > batch.head.count {
            return Err("order names a group more often than its batch has records");
        }
        for i in 0..answer.records {
            entry_size(batch, batch.at.value_offsets, i)?;
            key_size(batch, i)?;
        }
        answer.records = 0;
    }
    Ok(total)
}

/// Fills what was measured.
pub fn fill_answers(answers: &mut [Answer], order: &[u8], out: &mut [u8]) {
    let mut at = 0;
    for number in order.chunks_exact(2) {
        let answer = &mut answers[u16::from_le_bytes(be(number, 0)) as usize];
        copy_ahead(out, at, &answer.template, 0, answer.size);
        if let Some(batch) = &answer.batch {
            let i = answer.records;
            answer.records += 1;
            let frame = &mut out[at + answer.patch..at + answer.size];
            batch::put(frame, 0, (batch.head.base_offset + i as u64).to_be_bytes());
            // Both were found sound when the answers were measured.
            batch::put(frame, 16, key_size(batch, i).unwrap_or(-1).to_be_bytes());
            let value_size = entry_size(batch, batch.at.value_offsets, i).unwrap_or(0);
            batch::put(frame, 20, value_size.to_be_bytes());
        }
        at += answer.size;
    }
}
