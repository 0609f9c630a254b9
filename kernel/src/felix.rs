//! Felix frames: splitting what was read into batches, and writing events and publishes.
//!
//! A batch's lengths are walked twice: once to judge and to count, once to fill memory of exactly that size. What a frame
//! means for a session is not decided here, and no Python object is touched; JSON is `felix_json.rs`'s matter.

use crate::batch::{self, Batch, Head, KEYS, Layout, Refusal, Sizes};
use crate::blip::{self, MAX_GROUP_BYTES, MAX_GROUP_RECORDS, be, copy_ahead, u64_be};
use crate::felix_json::{base64_size, put_base64};
use crate::make;

//   0       4         6       8        12
//  |magic  |version  |flags  |length  |payload...      big-endian; length counts the payload
pub const HEADER_BYTES: usize = 12;
const MAGIC: u32 = 0x464C_5831;
const VERSION: u16 = 1;
pub const MAX_FRAME_CEILING_BYTES: usize = 32 * 1024 * 1024;

//  flags on the wire and what the payload is
//  0x0000  one JSON object
//  0x0001  |tenant str16 |namespace str16 |stream str16 |count u32 |count times: length u32, value
//  0x0009  |request_id u64 |ack_mode u8 |the body of 0x0001
//  0x0002  |subscription_id u64 |count u32 |count times: length u32, value
//  0x0004  |count u32 |count times: length u32, value
//  0x0022  |subscription_id u64 |base_offset u64 |count u32 |...       0x0024 |base_offset u64 |count u32 |...
//  0x0010  |status u8 |request_id u64 |message str16
//  0x0040  on 0x0001, 0x0009, 0x0004 or 0x0024: the payload is packed; nobody here unpacks it. Where it was negotiated as the
//          published clients mean it (`key_flag`): |key str16 |, on 0x0001 before the tenant, on 0x0009 behind ack_mode
//  0x0100  the same key, and 0x0040 is free for packing; on 0x0004 and 0x0024 each value is |key size + 1, or 0 u32 |key |length u32 |value
pub const BATCH: u16 = 0x0001;
pub const EVENTS_OF: u16 = 0x0002;
pub const EVENTS: u16 = 0x0004;
pub const ACKED: u16 = 0x0008;
pub const ACK: u16 = 0x0010;
pub const OFFSETS: u16 = 0x0020;
pub const PACKED: u16 = 0x0040;
pub const KEYED: u16 = 0x0100;
pub const RECORDS: u16 = 0x0400;
pub const ACKED_BYTES: usize = 9;
pub const ACK_BYTES: usize = 11;
const COUNT_BYTES: usize = 4;
const LENGTH_BYTES: usize = 4;
pub const OFFSET_BYTES: usize = 8;
const TARGET_NAMES: usize = 3;
const MAX_ACK_MODE: u8 = 2;

const BAD_MAGIC: u8 = 1;
const BAD_VERSION: u8 = 2;
const LONG_FRAME: u8 = 3;
pub const BAD_PAYLOAD: u8 = 4;
pub const BAD_FLAGS: u8 = 5;

const ENDS_EARLY: u8 = 1;
const LARGE_COUNT: u8 = 2;
const BYTES_BEHIND: u8 = 3;
const BAD_ACK_MODE: u8 = 4;
const BAD_NAME: u8 = 5;
const TOO_MANY: u8 = 6;
const LARGE_KEY: u8 = 7;

// The document's bounds of an event_batch.
const MAX_EVENTS: usize = 64;
const MAX_EVENTS_BYTES: usize = 64 * 1024;

fn u32_be(d: &[u8], at: usize) -> usize {
    u32::from_be_bytes(be(d, at)) as usize
}

pub enum Next {
    Frame { flags: u16, end: usize },
    Wait,
    Fatal(u8),
}

/// The frame at pos. Each field of the header is judged as soon as it is in, the rest when the frame is whole.
#[inline]
pub fn next_frame(d: &[u8], pos: usize, frame_bytes_max: usize) -> Next {
    let left = d.len() - pos;
    if left >= 4 && u32_be(d, pos) != MAGIC as usize {
        return Next::Fatal(BAD_MAGIC);
    }
    if left >= 6 && u16::from_be_bytes(be(d, pos + 4)) != VERSION {
        return Next::Fatal(BAD_VERSION);
    }
    if left < HEADER_BYTES {
        return Next::Wait;
    }
    let length = u32_be(d, pos + 8);
    if length > frame_bytes_max {
        return Next::Fatal(LONG_FRAME);
    }
    if left - HEADER_BYTES < length {
        return Next::Wait;
    }
    Next::Frame { flags: u16::from_be_bytes(be(d, pos + 6)), end: pos + HEADER_BYTES + length }
}

/// The header of a frame.
pub fn header(flags: u16, length: usize) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..4].copy_from_slice(&MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&VERSION.to_be_bytes());
    out[6..8].copy_from_slice(&flags.to_be_bytes());
    out[8..].copy_from_slice(&(length as u32).to_be_bytes());
    out
}

// -- batches of a client ----------------------------------------------------------------------------------------------

/// The values of a frame: `count` times a length and a value, from `at` on; `bytes` are those of the values.
#[derive(Clone, Copy)]
pub struct Values {
    at: usize,
    pub count: usize,
    bytes: usize,
}

impl Values {
    /// The count and the values of d[at..end], which must be all of it; or the error number.
    pub fn parse(d: &[u8], at: usize, end: usize) -> Result<Values, u8> {
        if end - at < COUNT_BYTES {
            return Err(ENDS_EARLY);
        }
        let (count, first) = (u32_be(d, at), at + COUNT_BYTES);
        if count > (end - first) / LENGTH_BYTES {
            return Err(LARGE_COUNT);
        }
        if count > MAX_GROUP_RECORDS {
            return Err(TOO_MANY);
        }
        let mut at = first;
        for _ in 0..count {
            if end - at < LENGTH_BYTES {
                return Err(ENDS_EARLY);
            }
            let size = u32_be(d, at);
            at += LENGTH_BYTES;
            if end - at < size {
                return Err(ENDS_EARLY);
            }
            at += size;
        }
        if at != end {
            return Err(BYTES_BEHIND);
        }
        Ok(Values { at: first, count, bytes: end - first - LENGTH_BYTES * count })
    }

    /// Where each value is in d.
    pub fn iter<'a>(&self, d: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut at = self.at;
        (0..self.count).map(move |_| {
            let size = u32_be(d, at);
            let value = &d[at + LENGTH_BYTES..at + LENGTH_BYTES + size];
            at += LENGTH_BYTES + size;
            value
        })
    }
}

/// The key (if there is one) and the value of every event of d[at..end], which must be all of it; None if they do not add up.
pub fn keyed_values(d: &[u8], mut at: usize, end: usize) -> Option<Vec<(Option<&[u8]>, &[u8])>> {
    let mut take = |size: usize| {
        let found = d[..end].get(at..at.checked_add(size)?)?;
        at += size;
        Some(found)
    };
    let count = u32_be(take(COUNT_BYTES)?, 0);
    if count > MAX_GROUP_RECORDS {
        return None;
    }
    let mut out = Vec::new();
    for _ in 0..count {
        let key = match u32_be(take(LENGTH_BYTES)?, 0) {
            0 => None,
            size => Some(take(size - 1)?),
        };
        let size = u32_be(take(LENGTH_BYTES)?, 0);
        out.push((key, take(size)?));
    }
    (at == end).then_some(out)
}

/// The text behind a length of two bytes at d[at..end], and where it ends.
fn str16(d: &[u8], at: usize, end: usize) -> Result<(&[u8], usize), u8> {
    if end - at < 2 {
        return Err(ENDS_EARLY);
    }
    let size = u16::from_be_bytes(be(d, at)) as usize;
    if end - at - 2 < size {
        return Err(ENDS_EARLY);
    }
    Ok((&d[at + 2..at + 2 + size], at + 2 + size))
}

/// Where the three names of d[at..end] end, or the error number. `known` are three that were checked before.
fn target_end(d: &[u8], mut at: usize, end: usize, known: &[u8]) -> Result<usize, u8> {
    if !known.is_empty() && d[at..end].starts_with(known) {
        return Ok(at + known.len());
    }
    for _ in 0..TARGET_NAMES {
        let (name, behind) = str16(d, at, end)?;
        if std::str::from_utf8(name).is_err() {
            return Err(BAD_NAME);
        }
        at = behind;
    }
    Ok(at)
}

pub fn target_sound(target: &[u8]) -> bool {
    target_end(target, 0, target.len(), &[]) == Ok(target.len())
}

pub struct Malformed {
    pub code: u8,
    pub request_id: Option<u64>,
}

/// How a frame of a client begins: with a request_id and an ack_mode, with a key.
#[derive(Clone, Copy)]
pub struct Front {
    pub acked: bool,
    pub keyed: bool,
}

/// The request_id of an acknowledged batch, if that much of its payload d[at..end] is there.
pub fn request_id_of(d: &[u8], at: usize, end: usize) -> Option<u64> {
    (end - at >= 8).then(|| u64_be(d, at))
}

/// Batches of a client that become one: those of several frames if nobody waits for an acknowledgement. One key is the key
/// of every record.
pub struct Group<'a> {
    pub target: &'a [u8],
    pub key: Option<&'a [u8]>,
    pub request_id: Option<u64>,
    pub ack_mode: u8,
    pub count: usize,
    bytes: usize,
    parts: Vec<Values>,
}

impl<'a> Group<'a> {
    /// The batch whose payload is d[at..end].
    pub fn parse(d: &'a [u8], at: usize, end: usize, front: Front, known: &[u8]) -> Result<Group<'a>, Malformed> {
        let (mut request_id, mut ack_mode, mut at) = (None, 0, at);
        if front.acked {
            request_id = request_id_of(d, at, end);
            if end - at < ACKED_BYTES {
                return Err(Malformed { code: ENDS_EARLY, request_id });
            }
            ack_mode = d[at + 8];
            if !(1..=MAX_ACK_MODE).contains(&ack_mode) {
                return Err(Malformed { code: BAD_ACK_MODE, request_id });
            }
            at += ACKED_BYTES;
        }
        let fault = |code| Malformed { code, request_id };
        let mut key = None;
        if front.keyed {
            let (found, behind) = str16(d, at, end).map_err(fault)?;
            (key, at) = (Some(found), behind);
        }
        let behind = target_end(d, at, end, known).map_err(fault)?;
        let values = Values::parse(d, behind, end).map_err(fault)?;
        let (count, bytes) = (values.count, values.bytes);
        let group = Group { target: &d[at..behind], key, request_id, ack_mode, count, bytes, parts: vec![values] };
        if group.stored_bytes() > MAX_GROUP_BYTES { Err(fault(LARGE_KEY)) } else { Ok(group) }
    }

    fn key_bytes(&self) -> usize {
        self.key.map_or(0, |key| key.len() * self.count)
    }

    fn stored_bytes(&self) -> usize {
        self.bytes + self.key_bytes()
    }

    /// Takes the values of the next frame in, if they belong to this batch.
    pub fn join(&mut self, next: &Group) -> bool {
        let fits = self.target == next.target
            && self.key == next.key
            && self.stored_bytes() + next.stored_bytes() <= MAX_GROUP_BYTES
            && self.count + next.count <= MAX_GROUP_RECORDS;
        if fits {
            self.parts.extend(&next.parts);
            self.bytes += next.bytes;
            self.count += next.count;
        }
        fits
    }

    /// What the batch will look like; there is one only with at least one record.
    pub fn plan(&self, origin: &[u8]) -> Result<(Head, Layout), Refusal> {
        let columns = if self.key.is_some() { KEYS } else { 0 };
        let mut head = Head { columns, count: self.count, span: self.count as u32, origins: 1, ..Head::default() };
        let (keys, values) = (self.key_bytes() as u64, self.bytes as u64);
        let sizes = Sizes { origins: origin.len() as u64, values, keys, ..Sizes::default() };
        let at = batch::plan(&mut head, &sizes)?;
        Ok((head, at))
    }

    /// Fills the batch: every byte of `out`, which is as long as planned.
    pub fn fill(&self, d: &[u8], plan: &(Head, Layout), origin: &[u8], out: &mut [u8]) {
        let (head, at) = plan;
        out[..at.value_offsets + 4].fill(0);
        out[at.value_offsets + 4 * (self.count + 1)..at.value_data].fill(0);
        out[at.value_data + self.bytes..].fill(0);
        make::begin(out, head, at, &[origin]);
        if let Some(key) = self.key {
            let mut keys = make::VarWriter::new(at.key_offsets, at.key_data);
            for _ in 0..self.count {
                keys.push(out, key);
            }
        }
        let (front, rest) = out.split_at_mut(at.value_data);
        let mut offsets = front[at.value_offsets + 4..at.value_offsets + 4 * (self.count + 1)].chunks_exact_mut(4);
        let values = &mut rest[..self.bytes];
        let mut to = 0;
        for part in &self.parts {
            let mut from = part.at;
            for offset in offsets.by_ref().take(part.count) {
                let size = u32_be(d, from);
                copy_ahead(values, to, d, from + LENGTH_BYTES, size);
                from += LENGTH_BYTES + size;
                to += size;
                offset.copy_from_slice(&(to as u32).to_le_bytes());
            }
        }
    }
}

// -- events of a server -----------------------------------------------------------------------------------------------

/// Events that share a frame: the first of them and how many, and the bytes of the payload. None of them: the record of that
/// row is left out, because a frame of it alone would have that many bytes.
struct Run {
    row: usize,
    events: usize,
    size: usize,
}

/// The records of a batch that are to be sent, all values checked.
struct Chosen<'a> {
    batch: Batch<'a>,
    first: usize,
    last: usize,
    now: i64,
}

impl<'a> Chosen<'a> {
    fn new(data: &'a [u8], first: i64, last: i64, now: i64) -> Result<Chosen<'a>, Refusal> {
        let batch = Batch::open(data, 0)?;
        blip::measure(&batch, first, last, now)?;
        Ok(Chosen { batch, first: first as usize, last: last as usize, now })
    }

    fn rows(&self, from: usize) -> impl Iterator<Item = usize> + '_ {
        (from..self.last).filter(|i| {
            let expiry = self.batch.expiry(*i);
            expiry == 0 || expiry > self.now
        })
    }

    /// Where the value of record i is in the batch, and its size.
    #[inline]
    fn value(&self, i: usize) -> (usize, usize) {
        let (d, at) = (self.batch.d, &self.batch.at);
        let a = batch::i32_at(d, at.value_offsets + 4 * i) as usize;
        (at.value_data + a, batch::i32_at(d, at.value_offsets + 4 * i + 4) as usize - a)
    }

    /// Where the key of record i is in the batch, and its size; None if it has none. The column must have been checked.
    fn key(&self, i: usize) -> Option<(usize, usize)> {
        let (d, at) = (self.batch.d, &self.batch.at);
        if at.key_offsets == 0 || self.batch.is_null(at.key_bitmap, i) {
            return None;
        }
        let a = batch::i32_at(d, at.key_offsets + 4 * i) as usize;
        Some((at.key_data + a, batch::i32_at(d, at.key_offsets + 4 * i + 4) as usize - a))
    }

    /// Whether there are keys; each of them is checked.
    fn check_keys(&self) -> Result<bool, Refusal> {
        let at = &self.batch.at;
        if at.key_offsets != 0 {
            for i in self.first..self.last {
                self.batch.entry(at.key_offsets, at.key_data, self.batch.head.count, i)?;
            }
        }
        Ok(at.key_offsets != 0)
    }

    /// The frames: each begins with `front` bytes, has `entry` bytes for each event, and ends before it would have over
    /// `most` bytes or events_max events, or (in_row) where an offset is missing. A record whose frame alone has more than
    /// alone.1 bytes, `alone.0` of its value, is a run of no events.
    fn runs(
        &self,
        (front, most, events_max, in_row): (usize, usize, usize, bool),
        entry: impl Fn(usize) -> usize,
        alone: (impl Fn(usize) -> usize, usize),
    ) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for row in self.rows(self.first) {
            let size = entry(row);
            if alone.0(row) > alone.1 {
                runs.push(Run { row, events: 0, size: alone.0(row) });
                continue;
            }
            match runs.last_mut() {
                Some(run)
                    if run.events > 0
                        && run.size + size <= most
                        && run.events < events_max
                        && (!in_row || self.batch.delta(row) == self.batch.delta(run.row) + run.events as u64) =>
                {
                    run.events += 1;
                    run.size += size;
                }
                _ => runs.push(Run { row, events: 1, size: front + size }),
            }
        }
        runs
    }
}

/// What is left out: (where in the written bytes it would stand, its row, the bytes of its frame).
pub type Omitted = Vec<(usize, usize, usize)>;

/// The bytes of all frames, their events, and what is left out.
fn totals(runs: &[Run]) -> (usize, usize, Omitted) {
    let (mut bytes, mut events, mut omitted) = (0, 0, Omitted::new());
    for run in runs {
        match run.events {
            0 => omitted.push((bytes, run.row, run.size)),
            count => {
                bytes += HEADER_BYTES + run.size;
                events += count;
            }
        }
    }
    (bytes, events, omitted)
}

/// Binary event frames that can be written.
pub struct Delivery<'a> {
    chosen: Chosen<'a>,
    runs: Vec<Run>,
    offsets: bool,
    keys: bool,
    high: u64,
    pub bytes: usize,
    pub events: usize,
    pub omitted: Omitted,
}

impl<'a> Delivery<'a> {
    pub fn new(
        data: &'a [u8],
        (first, last): (i64, i64),
        now: i64,
        (offsets, keys): (bool, bool),
        high: u64,
        frame_bytes_max: usize,
    ) -> Result<Delivery<'a>, Refusal> {
        let chosen = Chosen::new(data, first, last, now)?;
        let keys = keys && chosen.check_keys()?;
        let front = if offsets { OFFSET_BYTES + COUNT_BYTES } else { COUNT_BYTES };
        let entry = |row| {
            let key = if keys { LENGTH_BYTES + chosen.key(row).map_or(0, |(_, size)| size) } else { 0 };
            key + LENGTH_BYTES + chosen.value(row).1
        };
        let alone = (|row| front + entry(row), frame_bytes_max);
        let runs = chosen.runs((front, frame_bytes_max, usize::MAX, offsets), entry, alone);
        let (bytes, events, omitted) = totals(&runs);
        Ok(Delivery { chosen, runs, offsets, keys, high, bytes, events, omitted })
    }

    /// Fills exactly `bytes` bytes.
    pub fn fill(&self, out: &mut [u8]) {
        let batch = &self.chosen.batch;
        let mut flags = if self.offsets { EVENTS | OFFSETS } else { EVENTS };
        flags |= if self.keys { KEYED } else { 0 };
        let mut to = 0;
        let mut put = |out: &mut [u8], bytes: &[u8]| {
            out[to..to + bytes.len()].copy_from_slice(bytes);
            to += bytes.len();
            to
        };
        for run in self.runs.iter().filter(|run| run.events > 0) {
            put(out, &header(flags, run.size));
            if self.offsets {
                put(out, &((batch.head.base_offset + batch.delta(run.row)) | self.high).to_be_bytes());
            }
            put(out, &(run.events as u32).to_be_bytes());
            for row in self.chosen.rows(run.row).take(run.events) {
                if self.keys {
                    let (from, size) = self.chosen.key(row).map_or((0, 0), |(from, size)| (from, size + 1));
                    put(out, &(size as u32).to_be_bytes());
                    put(out, &batch.d[from..from + size.saturating_sub(1)]);
                }
                let (from, size) = self.chosen.value(row);
                put(out, &(size as u32).to_be_bytes());
                put(out, &batch.d[from..from + size]);
            }
        }
    }
}

/// JSON event frames that can be written.
pub struct Events<'a> {
    chosen: Chosen<'a>,
    runs: Vec<Run>,
    one: Vec<u8>,
    many: Vec<u8>,
    pub bytes: usize,
    pub events: usize,
    pub omitted: Omitted,
}

fn text_size(size: usize) -> usize {
    base64_size(size) + 2
}

impl<'a> Events<'a> {
    pub fn new(
        data: &'a [u8],
        (first, last): (i64, i64),
        now: i64,
        target: &[u8],
        frame_bytes_max: usize,
    ) -> Result<Events<'a>, Refusal> {
        let chosen = Chosen::new(data, first, last, now)?;
        let comma: &[u8] = if target.is_empty() { b"" } else { b"," };
        let one = [b"{\"type\":\"event\"", comma, target, b",\"payload\":"].concat();
        let many = [b"{\"type\":\"event_batch\"", comma, target, b",\"payloads\":["].concat();
        // As an event_batch: its front, the texts with a comma behind each but the last, and two brackets.
        let most = frame_bytes_max.min(MAX_EVENTS_BYTES);
        let alone = |row| one.len() + text_size(chosen.value(row).1) + 1;
        let entry = |row| text_size(chosen.value(row).1) + 1;
        let mut runs = chosen.runs((many.len() + 1, most, MAX_EVENTS, false), entry, (alone, frame_bytes_max));
        for run in runs.iter_mut().filter(|run| run.events == 1) {
            run.size = alone(run.row);
        }
        let (bytes, events, omitted) = totals(&runs);
        Ok(Events { chosen, runs, one, many, bytes, events, omitted })
    }

    /// Fills exactly `bytes` bytes.
    pub fn fill(&self, out: &mut [u8]) {
        let mut to = 0;
        for run in self.runs.iter().filter(|run| run.events > 0) {
            let frame = &mut out[to..to + HEADER_BYTES + run.size];
            to += frame.len();
            frame[..HEADER_BYTES].copy_from_slice(&header(0, run.size));
            let front = if run.events == 1 { &self.one } else { &self.many };
            let mut at = HEADER_BYTES + front.len();
            frame[HEADER_BYTES..at].copy_from_slice(front);
            for row in self.chosen.rows(run.row).take(run.events) {
                let (from, size) = self.chosen.value(row);
                let end = at + text_size(size);
                frame[at] = b'"';
                put_base64(&mut frame[at + 1..end - 1], &self.chosen.batch.d[from..from + size]);
                frame[end - 1] = b'"';
                frame[end] = b','; // the last one is overwritten
                at = end + 1;
            }
            let close: &[u8] = if run.events == 1 { b"}" } else { b"]}" };
            let length = frame.len();
            frame[length - close.len()..].copy_from_slice(close);
        }
    }
}

// -- clients ----------------------------------------------------------------------------------------------------------

/// What stands in front of the values in a client's batch, `values` bytes with their lengths; None if the frame is too long.
/// `key` has the flag that says so on the wire.
pub fn publish_front(
    target: &[u8],
    request: Option<(u64, u8)>,
    key: Option<(&[u8], u16)>,
    count: usize,
    values: usize,
) -> Option<Vec<u8>> {
    let lead = if request.is_some() { ACKED_BYTES } else { 0 } + key.map_or(0, |(key, _)| 2 + key.len());
    let length = lead + target.len() + COUNT_BYTES + values;
    if length > MAX_FRAME_CEILING_BYTES {
        return None;
    }
    let flags = if request.is_some() { BATCH | ACKED } else { BATCH } | key.map_or(0, |(_, flag)| flag);
    let mut out = header(flags, length).to_vec();
    if let Some((request_id, ack_mode)) = request {
        out.extend(request_id.to_be_bytes());
        out.push(ack_mode);
    }
    if let Some((key, _)) = key {
        out.extend((key.len() as u16).to_be_bytes());
        out.extend(key);
    }
    out.extend(target);
    out.extend((count as u32).to_be_bytes());
    Some(out)
}

/// Writes a value and its length at `at`; returns where it ends. out must have room for it.
pub fn put_value(out: &mut [u8], at: usize, value: &[u8]) -> usize {
    let (body, end) = (at + LENGTH_BYTES, at + LENGTH_BYTES + value.len());
    out[at..body].copy_from_slice(&(value.len() as u32).to_be_bytes());
    out[body..end].copy_from_slice(value);
    end
}

pub fn ack_mode_fits(request: bool, ack_mode: i64) -> bool {
    if request { (1..=i64::from(MAX_ACK_MODE)).contains(&ack_mode) } else { ack_mode == 0 }
}
