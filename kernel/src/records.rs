//! Record sets: records with key, headers, time and origin, as the extended modes of all doors carry them.
//!
//! `pure_records.py` draws the bytes. Reading is done in two passes: the first checks and counts, the second fills batches of
//! exactly the size that is needed. Nothing here panics on hostile bytes, and no Python object is touched.

use crate::batch::{self, Batch, Head, Layout, Refusal, Sizes};
use crate::fly::fnv1a;
use crate::make::{self, VarWriter};
use std::collections::HashMap;

pub const NUMBER: u8 = 1;
pub const TIME: u8 = 2;
pub const ORIGIN: u8 = 4;
pub const KEY: u8 = 8;
pub const HEADERS: u8 = 16;
pub const TTL: u8 = 32;
pub const NULL: u8 = 64;
const PUBLISHED: u8 = KEY | HEADERS | TTL | NULL;
const DELIVERED: u8 = NUMBER | TIME | ORIGIN | KEY | HEADERS | NULL;
const RECORDS_MAX: usize = 1 << 20;
pub const SET_BYTES_MAX: usize = 32 * 1024 * 1024;
const HEADERS_MAX: usize = 1_000;
const HEADERS_BYTES_MAX: usize = 64 * 1024;
const NAME_BYTES_MAX: usize = 255;
const RESERVED: &[u8] = b"quintet-";
const MAX_GROUPS: usize = 65_535;
const USUAL_HEADERS_BYTES: usize = 256; // most messages have less of them
const MICROSECONDS_PER_MILLISECOND: i64 = 1000;
pub const ANY: i32 = -1;

const SHORT: u8 = 1;
const BITS: u8 = 2;
const EMPTY: u8 = 3;
const MANY_RECORDS: u8 = 4;
const MANY_HEADERS: u8 = 5;
const LONG_HEADERS: u8 = 6;
const BAD_NAME: u8 = 7;
const NOT_UTF8: u8 = 8;
const RESERVED_NAME: u8 = 9;

type Why = (u8, usize);
const CUT: Why = (SHORT, 0);

/// Takes fields off the front; refused when they are not all there.
struct Reader<'a> {
    d: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, size: usize) -> Result<&'a [u8], Why> {
        let found = self.d.get(self.at..).and_then(|rest| rest.get(..size)).ok_or(CUT)?;
        self.at += size;
        Ok(found)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Why> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<usize, Why> {
        Ok(u32::from_be_bytes(self.fixed()?) as usize)
    }

    fn blob(&mut self) -> Result<&'a [u8], Why> {
        let size = self.u32()?;
        self.bytes(size)
    }

    /// Name and value of one header.
    fn header(&mut self) -> Result<Header<'a>, Why> {
        let name = self.blob()?;
        let size = self.u32()?;
        Ok((name, if size == 0 { None } else { Some(self.bytes(size - 1)?) }))
    }

    fn header_count(&mut self) -> Result<usize, Why> {
        let count = self.u32()?;
        if count > (self.d.len() - self.at) / 8 { Err(CUT) } else { Ok(count) }
    }
}

pub type Header<'a> = (&'a [u8], Option<&'a [u8]>);

// -- publishing -------------------------------------------------------------------------------------------------------

struct Published<'a> {
    key: Option<&'a [u8]>,
    headers: usize, // where they begin in the set, behind their count
    header_count: usize,
    ttl_ms: u32,
    value: Option<&'a [u8]>,
    group: u16,
}

#[derive(Default)]
struct Group {
    partition: i32,
    members: Vec<u32>, // numbers of its records in the set
    sizes: Sizes,
    columns: u16,
    keys: usize,
}

/// A sound record set of a publisher, by partition.
pub struct Split<'a> {
    d: &'a [u8],
    records: Vec<Published<'a>>,
    groups: Vec<Group>,
    now: i64,
    newest: (i32, u16), // partition and number of the group that the record before went to
}

impl<'a> Split<'a> {
    /// Or (code, record, size): why it is refused.
    pub fn new(d: &'a [u8], partition: i32, partitions: u32, now: i64) -> Result<Split<'a>, (u8, usize, usize)> {
        // One partition keeps the order of the set, whichever of its records have keys.
        let partition = if partitions == 1 { 0 } else { partition };
        let mut split = Split { d, records: Vec::new(), groups: Vec::new(), now, newest: (i32::MIN, 0) };
        let mut reader = Reader { d, at: 0 };
        let mut numbers = HashMap::new();
        while reader.at < d.len() {
            split
                .take(&mut reader, partition, partitions, &mut numbers)
                .map_err(|(code, size)| (code, split.records.len(), size))?;
        }
        if split.records.is_empty() { Err((EMPTY, 0, 0)) } else { Ok(split) }
    }

    fn take(
        &mut self,
        reader: &mut Reader<'a>,
        partition: i32,
        partitions: u32,
        numbers: &mut HashMap<i32, u16>,
    ) -> Result<(), Why> {
        if self.records.len() == RECORDS_MAX {
            return Err((MANY_RECORDS, 0));
        }
        let [bits] = reader.fixed()?;
        if bits & !PUBLISHED != 0 {
            return Err((BITS, bits as usize));
        }
        let key = if bits & KEY != 0 { Some(reader.blob()?).filter(|key| !key.is_empty()) } else { None };
        let header_count = if bits & HEADERS != 0 { reader.header_count()? } else { 0 };
        let headers = reader.at;
        let (mut names, mut values, mut nulls, mut fault) = (0, 0, false, None);
        for number in 0..header_count {
            let (name, value) = reader.header()?;
            fault = fault.or_else(|| name_fault(name, number));
            names += name.len();
            values += value.map_or(0, <[u8]>::len);
            nulls |= value.is_none();
        }
        let ttl_ms = if bits & TTL != 0 { u32::from_be_bytes(reader.fixed()?) } else { 0 };
        let value = if bits & NULL != 0 { None } else { Some(reader.blob()?) };
        if header_count > HEADERS_MAX {
            return Err((MANY_HEADERS, header_count));
        }
        if names + values > HEADERS_BYTES_MAX {
            return Err((LONG_HEADERS, names + values));
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        let chosen = match key {
            Some(key) if partition == ANY => (fnv1a(key) % partitions) as i32,
            _ => partition,
        };
        if self.newest.0 != chosen {
            self.newest = (chosen, self.group_of(chosen, numbers)?);
        }
        let group = self.newest.1;
        let one = &mut self.groups[group as usize];
        one.members.push(self.records.len() as u32);
        one.sizes.values += value.map_or(0, |value| value.len() as u64);
        one.sizes.keys += key.map_or(0, |key| key.len() as u64);
        one.sizes.header_count += header_count as u64;
        one.sizes.names += names as u64;
        one.sizes.hvalues += values as u64;
        one.keys += usize::from(key.is_some());
        let when = |yes: bool, column: u16| if yes { column } else { 0 };
        one.columns |= when(value.is_none(), batch::VALUE_NULLS)
            | when(key.is_some(), batch::KEYS)
            | when(header_count != 0, batch::HEADERS)
            | when(nulls, batch::HEADER_NULLS)
            | when(ttl_ms != 0, batch::EXPIRY);
        self.records.push(Published { key, headers, header_count, ttl_ms, value, group });
        Ok(())
    }

    /// The number of the group for a partition, a new one if there is none yet.
    fn group_of(&mut self, partition: i32, numbers: &mut HashMap<i32, u16>) -> Result<u16, Why> {
        if let Some(number) = numbers.get(&partition) {
            return Ok(*number);
        }
        if self.groups.len() == MAX_GROUPS {
            return Err((MANY_RECORDS, 0));
        }
        let number = self.groups.len() as u16;
        numbers.insert(partition, number);
        self.groups.push(Group { partition, ..Group::default() });
        Ok(number)
    }

    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    pub fn record_count(&self) -> usize {
        self.records.len()
    }

    /// (partition, records) of a group.
    pub fn group(&self, number: usize) -> (i32, usize) {
        (self.groups[number].partition, self.groups[number].members.len())
    }

    pub fn plan(&self, number: usize, origin: &[u8], flags: u16) -> Result<(Head, Layout), Refusal> {
        let group = &self.groups[number];
        let mut sizes = group.sizes;
        sizes.origins = origin.len() as u64;
        let mut columns = group.columns;
        let count = group.members.len();
        if group.keys != 0 && group.keys < count {
            columns |= batch::KEY_NULLS;
        }
        let mut head = Head { flags, columns, count, span: count as u32, origins: 1, ..Head::default() };
        let at = batch::plan(&mut head, &sizes)?;
        Ok((head, at))
    }

    /// Fills bytes of exactly the planned length. Zeros go everywhere but to the values, which are most of it and written whole.
    pub fn fill(&self, number: usize, plan: &(Head, Layout), origin: &[u8], d: &mut [u8]) {
        let (head, w) = plan;
        d[..w.value_data].fill(0);
        d[w.value_data + self.groups[number].sizes.values as usize..].fill(0);
        make::begin(d, head, w, &[origin]);
        let mut values = VarWriter::new(w.value_offsets, w.value_data);
        let mut keys = VarWriter::new(w.key_offsets, w.key_data);
        let mut names = VarWriter::new(w.name_offsets, w.name_data);
        let mut hvalues = VarWriter::new(w.hvalue_offsets, w.hvalue_data);
        let mut total = 0;
        for (i, &member) in self.groups[number].members.iter().enumerate() {
            let record = &self.records[member as usize];
            if w.value_bitmap != 0 && record.value.is_some() {
                make::set_bit(d, w.value_bitmap, i);
            }
            values.push(d, record.value.unwrap_or(&[]));
            if w.key_offsets != 0 {
                if w.key_bitmap != 0 && record.key.is_some() {
                    make::set_bit(d, w.key_bitmap, i);
                }
                keys.push(d, record.key.unwrap_or(&[]));
            }
            if w.header_lists != 0 {
                let mut reader = Reader { d: self.d, at: record.headers };
                for _ in 0..record.header_count {
                    let (name, value) = reader.header().unwrap_or((&[], None)); // read before: it is there
                    if w.hvalue_bitmap != 0 && value.is_some() {
                        make::set_bit(d, w.hvalue_bitmap, total);
                    }
                    names.push(d, name);
                    hvalues.push(d, value.unwrap_or(&[]));
                    total += 1;
                }
                make::put_i32(d, w.header_lists, i + 1, total as i32);
            }
            if w.expiries != 0 && record.ttl_ms != 0 {
                let expiry = self.now + i64::from(record.ttl_ms) * MICROSECONDS_PER_MILLISECOND;
                make::put_i64(d, w.expiries, i, expiry);
            }
        }
    }

    /// The group of each record, two bytes each.
    pub fn fill_order(&self, out: &mut [u8]) {
        for (to, record) in out.chunks_exact_mut(2).zip(&self.records) {
            to.copy_from_slice(&record.group.to_le_bytes());
        }
    }
}

/// What is wrong with the name of header `number`.
fn name_fault(name: &[u8], number: usize) -> Option<Why> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Some((BAD_NAME, name.len()));
    }
    if std::str::from_utf8(name).is_err() {
        return Some((NOT_UTF8, number));
    }
    name.starts_with(RESERVED).then_some((RESERVED_NAME, number))
}

// -- writing ----------------------------------------------------------------------------------------------------------

fn put(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

pub fn put_header(out: &mut Vec<u8>, name: &[u8], value: Option<&[u8]>) {
    put(out, name);
    out.extend_from_slice(&(value.map_or(0, |value| value.len() as u32 + 1)).to_be_bytes());
    out.extend_from_slice(value.unwrap_or(&[]));
}

pub fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&(count as u32).to_be_bytes());
}

/// Headers that a publisher packs, one by one.
pub struct Packed {
    out: Vec<u8>,
    count: usize,
    size: usize, // of names and values
    bad_name: bool,
}

impl Packed {
    pub fn new() -> Packed {
        let mut out = Vec::with_capacity(USUAL_HEADERS_BYTES);
        out.extend_from_slice(&[0; 4]);
        Packed { out, count: 0, size: 0, bad_name: false }
    }

    pub fn put(&mut self, name: &[u8], value: Option<&[u8]>) {
        self.count += 1;
        self.size += name.len() + value.map_or(0, <[u8]>::len);
        self.bad_name |= name_fault(name, 0).is_some();
        put_header(&mut self.out, name, value);
    }

    /// As the split of the server judges it.
    pub fn is_within_limits(&self) -> bool {
        self.count <= HEADERS_MAX && self.size <= HEADERS_BYTES_MAX && !self.bad_name
    }

    /// Nothing at all if there are none.
    pub fn bytes(&mut self) -> &[u8] {
        self.out[..4].copy_from_slice(&(self.count as u32).to_be_bytes());
        if self.count == 0 { &[] } else { &self.out }
    }
}

/// One record of a publisher; `headers` are packed, or empty; an empty key is none.
pub struct ToPublish<'a> {
    pub key: &'a [u8],
    pub headers: &'a [u8],
    pub ttl_ms: u32,
    pub value: &'a [u8],
}

impl ToPublish<'_> {
    pub fn size(&self) -> usize {
        let key = if self.key.is_empty() { 0 } else { 4 + self.key.len() };
        let ttl = if self.ttl_ms == 0 { 0 } else { 4 };
        1 + key + self.headers.len() + ttl + 4 + self.value.len()
    }

    /// Writes it to the front of `out`, which has room for it; returns what is behind it.
    pub fn put<'o>(&self, out: &'o mut [u8]) -> &'o mut [u8] {
        let bit = |yes: bool, bit: u8| if yes { bit } else { 0 };
        let bits = bit(!self.key.is_empty(), KEY) | bit(!self.headers.is_empty(), HEADERS) | bit(self.ttl_ms != 0, TTL);
        let mut at = 0;
        let mut write = |data: &[u8]| {
            out[at..at + data.len()].copy_from_slice(data);
            at += data.len();
        };
        write(&[bits]);
        if !self.key.is_empty() {
            write(&(self.key.len() as u32).to_be_bytes());
            write(self.key);
        }
        write(self.headers);
        if self.ttl_ms != 0 {
            write(&self.ttl_ms.to_be_bytes());
        }
        write(&(self.value.len() as u32).to_be_bytes());
        write(self.value);
        &mut out[at..]
    }
}

pub struct DeliverWish<'a> {
    pub batch: &'a Batch<'a>,
    pub first: usize,
    pub last: usize,
    pub now: i64,
    pub base: u64,
    pub bytes_max: usize,
}

/// (bytes, count, following) as `records_deliver` says.
pub fn deliver(wish: &DeliverWish<'_>) -> Result<(Vec<u8>, usize, usize), Refusal> {
    let (batch, w, n) = (wish.batch, &wish.batch.at, wish.batch.head.count);
    let mut out: Vec<u8> = Vec::with_capacity(wish.bytes_max.min(batch.d.len()));
    let mut count = 0;
    let (mut expected, mut time, mut origin) = (None, None, None);
    for i in wish.first..wish.last {
        let expiry = batch.expiry(i);
        if wish.now != 0 && expiry > 0 && expiry <= wish.now {
            continue;
        }
        let number = wish.base + batch.head.base_offset + batch.delta(i);
        let own_time = batch.timestamp(i);
        let own_origin = batch.origin(batch.origin_number(i))?;
        let value = batch.entry(w.value_offsets, w.value_data, n, i)?;
        let null = batch.is_null(w.value_bitmap, i);
        let key = if w.key_offsets == 0 || batch.is_null(w.key_bitmap, i) {
            &[][..]
        } else {
            batch.entry(w.key_offsets, w.key_data, n, i)?
        };
        let headers = if w.header_lists == 0 { 0..0 } else { batch.header_range(i)? };
        let start = out.len();
        let bit = |yes: bool, bit: u8| if yes { bit } else { 0 };
        let (new_number, new_time) = (expected != Some(number), time != Some(own_time));
        let new_origin = origin != Some(own_origin);
        out.push(
            bit(new_number, NUMBER)
                | bit(new_time, TIME)
                | bit(new_origin, ORIGIN)
                | bit(!key.is_empty(), KEY)
                | bit(!headers.is_empty(), HEADERS)
                | bit(null, NULL),
        );
        if new_number {
            out.extend_from_slice(&number.to_be_bytes());
        }
        if new_time {
            out.extend_from_slice(&own_time.to_be_bytes());
        }
        if new_origin {
            out.extend_from_slice(&(own_origin.len() as u16).to_be_bytes());
            out.extend_from_slice(own_origin);
        }
        if !key.is_empty() {
            put(&mut out, key);
        }
        if !headers.is_empty() {
            put_count(&mut out, headers.len());
            for j in headers {
                let name = batch.entry(w.name_offsets, w.name_data, w.header_count, j)?;
                let text = batch.entry(w.hvalue_offsets, w.hvalue_data, w.header_count, j)?;
                put_header(&mut out, name, (!batch.is_null(w.hvalue_bitmap, j)).then_some(text));
            }
        }
        if !null {
            put(&mut out, value);
        }
        if start != 0 && out.len() > wish.bytes_max {
            out.truncate(start);
            return Ok((out, count, i));
        }
        count += 1;
        (expected, time, origin) = (Some(number + 1), Some(own_time), Some(own_origin));
    }
    Ok((out, count, wish.last))
}

// -- reading ----------------------------------------------------------------------------------------------------------

pub struct Received<'a> {
    pub number: u64,
    pub time: i64,
    pub origin: &'a [u8],
    pub key: Option<&'a [u8]>,
    pub headers: &'a [u8], // packed; empty if there are none
    pub value: &'a [u8],
}

/// Packed headers, one by one; None if they do not add up.
pub fn unpacked(d: &[u8]) -> Option<Vec<Header<'_>>> {
    let mut reader = Reader { d, at: 0 };
    let count = if d.is_empty() { 0 } else { reader.header_count().ok()? };
    let found = (0..count).map(|_| reader.header().ok()).collect::<Option<Vec<_>>>()?;
    (reader.at == d.len()).then_some(found)
}

/// What a server sent; None if it does not add up.
pub fn received(d: &[u8]) -> Option<Vec<Received<'_>>> {
    let mut reader = Reader { d, at: 0 };
    let mut found: Vec<Received<'_>> = Vec::new();
    let (mut number, mut time, mut origin) = (u64::MAX, 0, &[][..]);
    while reader.at < d.len() {
        let [bits] = reader.fixed().ok()?;
        if bits & !DELIVERED != 0 || found.len() == RECORDS_MAX {
            return None;
        }
        number = if bits & NUMBER != 0 { u64::from_be_bytes(reader.fixed().ok()?) } else { number.wrapping_add(1) };
        if bits & TIME != 0 {
            time = i64::from_be_bytes(reader.fixed().ok()?);
        }
        if bits & ORIGIN != 0 {
            let size = u16::from_be_bytes(reader.fixed().ok()?);
            origin = reader.bytes(size as usize).ok()?;
        }
        let key = if bits & KEY != 0 { Some(reader.blob().ok()?) } else { None };
        let start = reader.at;
        if bits & HEADERS != 0 {
            for _ in 0..reader.header_count().ok()? {
                reader.header().ok()?;
            }
        }
        let headers = &d[start..reader.at];
        let value = if bits & NULL != 0 { &[][..] } else { reader.blob().ok()? };
        if number > i64::MAX as u64 {
            return None;
        }
        found.push(Received { number, time, origin, key, headers, value });
    }
    Some(found)
}
