//! Making batches out of nothing, out of several others, or out of a part of one; and sealing them.
//!
//! Every maker first plans (sizes are added up, the layout is known, refusals are made) and then fills zeroed memory of
//! exactly that size. Reading is `batch.rs`'s matter, Python objects are `lib.rs`'s.

use crate::batch::{
    Batch, CHAIN, HEADER_BYTES, HEADERS, Head, KEY_NULLS, KEYS, LINK_BYTES, Layout, MAX_BATCH_BYTES, MAX_OFFSET,
    MAX_ORIGINS_ENTRIES, Refusal, SPARSE, Sizes, TOO_LARGE, crc32c, head_at, i32_at, plan, put, u16_at, u32_at,
};
use std::collections::HashMap;

/// Origins that are looked for by comparing, before a map is asked.
const NEAR_ORIGINS: usize = 8;
const TOO_MANY_ORIGINS: Refusal = "a batch holds 1 to 255 different origins; split it by origin";

/// Writes one var entry by entry, in order. `d` is the whole batch.
pub struct VarWriter {
    offsets: usize,
    data: usize,
    i: usize,
    size: usize,
}

impl VarWriter {
    pub fn new(offsets: usize, data: usize) -> VarWriter {
        VarWriter { offsets, data, i: 0, size: 0 }
    }

    pub fn push(&mut self, d: &mut [u8], entry: &[u8]) {
        let at = self.data + self.size;
        d[at..at + entry.len()].copy_from_slice(entry);
        self.size += entry.len();
        self.i += 1;
        put(d, self.offsets + 4 * self.i, (self.size as i32).to_le_bytes());
    }

    /// n entries of a sound var at once: its offsets are moved up by what is already here.
    fn push_all(&mut self, d: &mut [u8], from: &Batch, offsets: usize, data: usize, n: usize) {
        let (at, size) = (self.data + self.size, from.size(offsets, n));
        d[at..at + size].copy_from_slice(&from.d[data..data + size]);
        let base = self.size as i32;
        let out = &mut d[self.offsets + 4 * (self.i + 1)..self.offsets + 4 * (self.i + 1 + n)];
        let source = &from.d[offsets + 4..offsets + 4 * (n + 1)];
        for (to, one) in out.chunks_exact_mut(4).zip(source.chunks_exact(4)) {
            put(to, 0, (i32_at(one, 0) + base).to_le_bytes());
        }
        self.size += size;
        self.i += n;
    }

    fn push_empty(&mut self, d: &mut [u8], n: usize) {
        for _ in 0..n {
            self.push(d, &[]);
        }
    }
}

pub fn set_bit(d: &mut [u8], bitmap: usize, i: usize) {
    d[bitmap + i / 8] |= 1 << (i % 8);
}

pub fn put_i64(d: &mut [u8], column: usize, i: usize, value: i64) {
    put(d, column + 8 * i, value.to_le_bytes());
}

pub fn put_i32(d: &mut [u8], column: usize, i: usize, value: i32) {
    put(d, column + 4 * i, value.to_le_bytes());
}

/// Writes the header and the origin dictionary of a planned batch into zeroed bytes.
pub fn begin(d: &mut [u8], head: &Head, at: &Layout, origins: &[&[u8]]) {
    head.write(d);
    let mut writer = VarWriter::new(at.origin_offsets, at.origin_data);
    for origin in origins {
        writer.push(d, origin);
    }
}

/// As `begin`, into bytes that are not zeroed, of one origin: everything up to the first value offset, and what is behind the last of
/// them before their data.
pub fn begin_unzeroed(d: &mut [u8], head: &Head, at: &Layout, origin: &[u8]) {
    // What is written later overwrites some of these zeros: two moves of eight bytes are cheaper than to zero what is left.
    put(d, at.value_data - 8, [0; 8]);
    put(d, at.value_offsets - 8, [0; 8]);
    put(d, at.value_offsets, [0; 4]);
    put(d, at.origin_offsets, [0; 4]);
    head.write(d);
    put(d, at.origin_offsets + 4, (origin.len() as u32).to_le_bytes());
    d[at.origin_data..at.origin_data + origin.len()].copy_from_slice(origin);
}

/// A merge that is possible: what the batch will look like and which number each origin gets.
pub struct Merge<'a> {
    batches: Vec<Batch<'a>>,
    origins: Vec<&'a [u8]>,
    numbers: Vec<u8>,
    pub head: Head,
    at: Layout,
    timestamp: i64,
}

impl<'a> Merge<'a> {
    pub fn new(parts: &[&'a [u8]], timestamp: i64) -> Result<Merge<'a>, Refusal> {
        let batches = parts.iter().map(|d| Batch::open_sound(d)).collect::<Result<Vec<_>, _>>()?;
        let first = batches.first().ok_or("nothing to merge; give at least one batch")?;
        let mut head = Head { flags: first.head.flags, ..Head::default() };
        let mut sizes = Sizes::default();
        let mut all_keys = true;
        for batch in &batches {
            let (h, w) = (&batch.head, &batch.at);
            if h.flags != head.flags {
                return Err("batches with different flags cannot be merged");
            }
            if h.producer_id != 0 {
                return Err("a batch with a producer_id keeps its identity and cannot be merged");
            }
            if h.has(SPARSE) {
                return Err("a compacted (SPARSE) batch cannot be merged");
            }
            head.columns |= h.columns & !CHAIN; // a link belongs to one place in one log
            head.count += h.count;
            all_keys &= h.has(KEYS);
            sizes.values += batch.value_size() as u64;
            if h.has(KEYS) {
                sizes.keys += batch.size(w.key_offsets, h.count) as u64;
            }
            if h.has(HEADERS) {
                sizes.header_count += w.header_count as u64;
                sizes.names += batch.size(w.name_offsets, w.header_count) as u64;
                sizes.hvalues += batch.size(w.hvalue_offsets, w.header_count) as u64;
            }
        }
        if head.has(KEYS) && !all_keys {
            head.columns |= KEY_NULLS;
        }
        let (origins, numbers) = unite_origins(&batches)?;
        sizes.origins = origins.iter().map(|o| o.len() as u64).sum();
        head.origins = origins.len();
        head.span = u32::try_from(head.count).map_err(|_| TOO_LARGE)?;
        let at = plan(&mut head, &sizes)?;
        Ok(Merge { batches, origins, numbers, head, at, timestamp })
    }

    /// Fills zeroed bytes of exactly head.length.
    pub fn fill(&self, d: &mut [u8]) {
        let (w, timestamp) = (&self.at, self.timestamp);
        begin(d, &self.head, w, &self.origins);
        let mut values = VarWriter::new(w.value_offsets, w.value_data);
        let mut keys = VarWriter::new(w.key_offsets, w.key_data);
        let mut names = VarWriter::new(w.name_offsets, w.name_data);
        let mut hvalues = VarWriter::new(w.hvalue_offsets, w.hvalue_data);
        let (mut row, mut number) = (0, 0);
        for batch in &self.batches {
            let (n, from) = (batch.head.count, &batch.at);
            if w.origin_index != 0 {
                for i in 0..n {
                    d[w.origin_index + row + i] = self.numbers[number + batch.origin_number(i)];
                }
            }
            number += batch.head.origins;
            copy_bits(d, w.value_bitmap, row, batch, from.value_bitmap, n);
            values.push_all(d, batch, from.value_offsets, from.value_data, n);
            if w.key_offsets != 0 {
                if from.key_offsets != 0 {
                    copy_bits(d, w.key_bitmap, row, batch, from.key_bitmap, n);
                    keys.push_all(d, batch, from.key_offsets, from.key_data, n);
                } else {
                    keys.push_empty(d, n);
                }
            }
            if w.header_lists != 0 {
                let before = names.i as i32;
                for i in 0..n {
                    let own = if from.header_lists == 0 { 0 } else { i32_at(batch.d, from.header_lists + 4 * i + 4) };
                    put_i32(d, w.header_lists, row + i + 1, before + own);
                }
                if from.header_lists != 0 {
                    copy_bits(d, w.hvalue_bitmap, names.i, batch, from.hvalue_bitmap, from.header_count);
                    names.push_all(d, batch, from.name_offsets, from.name_data, from.header_count);
                    hvalues.push_all(d, batch, from.hvalue_offsets, from.hvalue_data, from.header_count);
                }
            }
            for i in 0..n {
                if w.timestamps != 0 {
                    let own = if from.timestamps == 0 { timestamp } else { batch.timestamp(i) };
                    put_i64(d, w.timestamps, row + i, own);
                }
                if w.expiries != 0 {
                    put_i64(d, w.expiries, row + i, batch.expiry(i));
                }
            }
            row += n;
        }
    }
}

/// A merge of sound batches of one and the same origin with nothing but values: what `Merge` makes of them, without its tables.
pub struct PlainMerge<'a> {
    parts: &'a [&'a [u8]],
    pub head: Head,
    values: usize, // where their offsets begin, in each
    bytes: usize,
}

/// Where the data of n values whose offsets begin at `values` begins.
fn data_at(values: usize, n: usize) -> usize {
    (values + 4 * (n + 1)).next_multiple_of(8)
}

impl<'a> PlainMerge<'a> {
    /// None: they are not of this kind, or not sound; `Merge` knows.
    pub fn new(parts: &'a [&'a [u8]]) -> Option<PlainMerge<'a>> {
        let first = *parts.first()?;
        if first.len() < HEADER_BYTES + 8 || i32_at(first, HEADER_BYTES) != 0 {
            return None;
        }
        let origin = usize::try_from(i32_at(first, HEADER_BYTES + 4)).ok()?;
        let values = (HEADER_BYTES + 8).checked_add(origin)?.next_multiple_of(8);
        // How many origins there are, and the one.
        let front = first.get(62..values)?;
        let one_origin = front[..2] == [1, 0] && first[HEADER_BYTES + 8 + origin..values].iter().all(|b| *b == 0);
        if !one_origin {
            return None;
        }
        let mut head = Head { flags: u16_at(first, 12), origins: 1, ..Head::default() };
        let mut bytes = 0;
        for d in parts {
            // Same flags, no columns, no producer, one origin.
            if d.get(62..values)? != front || d[12..14] != first[12..14] || d[14..16] != [0, 0] || d[48..56] != [0; 8] {
                return None;
            }
            let n = u32_at(d, 24) as usize;
            bytes += plain_size(d, values, n)?;
            head.count += n;
        }
        head.span = u32::try_from(head.count).ok()?;
        head.length = (data_at(values, head.count) + bytes).next_multiple_of(8);
        (head.length as u64 <= MAX_BATCH_BYTES).then_some(PlainMerge { parts, head, values, bytes })
    }

    /// Fills every byte of `d`, which is as long as planned.
    pub fn fill(&self, d: &mut [u8]) {
        let (values, data) = (self.values, data_at(self.values, self.head.count));
        self.head.write(d);
        d[HEADER_BYTES..values].copy_from_slice(&self.parts[0][HEADER_BYTES..values]);
        put(d, values, [0; 4]);
        d[values + 4 * (self.head.count + 1)..data].fill(0);
        d[data + self.bytes..].fill(0);
        let (mut end, mut size) = (values + 4, 0);
        for part in self.parts {
            let n = u32_at(part, 24) as usize;
            for i in 1..=n {
                put(d, end, (size + i32_at(part, values + 4 * i)).to_le_bytes());
                end += 4;
            }
            let (from, more) = (data_at(values, n), i32_at(part, values + 4 * n) as usize);
            let to = data + size as usize;
            d[to..to + more].copy_from_slice(&part[from..from + more]);
            size += more as i32;
        }
    }
}

/// The bytes of the values of a batch that has nothing behind them; None: it is not sound.
fn plain_size(d: &[u8], values: usize, n: usize) -> Option<usize> {
    let data = data_at(values, n);
    if n == 0 || u32_at(d, 28) as usize != n || u32_at(d, 8) as usize != d.len() || data > d.len() {
        return None;
    }
    let size = usize::try_from(i32_at(d, values + 4 * n)).ok()?;
    let rising = (0..n).all(|i| i32_at(d, values + 4 * i) <= i32_at(d, values + 4 * i + 4));
    let end = data.checked_add(size)?;
    let whole = end.next_multiple_of(8) == d.len() && i32_at(d, values) == 0;
    let zero = |from: usize, to: usize| d[from..to].iter().all(|b| *b == 0);
    (whole && rising && zero(values + 4 * (n + 1), data) && zero(end, d.len())).then_some(size)
}

/// Marks the n entries of a column as present from `row` on: as the batch's own bitmap says, or all if it has none.
fn copy_bits(d: &mut [u8], bitmap: usize, row: usize, batch: &Batch, own: usize, n: usize) {
    if bitmap == 0 {
        return;
    }
    for i in 0..n {
        if !batch.is_null(own, i) {
            set_bit(d, bitmap, row + i);
        }
    }
}

/// All different origins in the order they are first met, and for each batch's each entry its number among them.
fn unite_origins<'a>(batches: &[Batch<'a>]) -> Result<(Vec<&'a [u8]>, Vec<u8>), Refusal> {
    let mut origins: Vec<&[u8]> = Vec::new();
    let mut numbers = Vec::with_capacity(batches.len());
    let mut known: HashMap<&[u8], u8> = HashMap::new();
    for batch in batches {
        for i in 0..batch.head.origins {
            let origin = batch.origin(i)?;
            // Few clients at a time: comparing the first few is cheaper than hashing.
            let near = origins.iter().take(NEAR_ORIGINS).position(|one| *one == origin).map(|number| number as u8);
            let number = match near.or_else(|| known.get(origin).copied()) {
                Some(number) => number,
                None if origins.len() == MAX_ORIGINS_ENTRIES => return Err(TOO_MANY_ORIGINS),
                None => {
                    origins.push(origin);
                    if origins.len() > NEAR_ORIGINS {
                        known.insert(origin, (origins.len() - 1) as u8);
                    }
                    (origins.len() - 1) as u8
                }
            };
            numbers.push(number);
        }
    }
    Ok((origins, numbers))
}

/// A selection that is possible.
pub struct Select<'a> {
    batch: Batch<'a>,
    keep: Vec<usize>,
    pub head: Head,
    at: Layout,
}

impl<'a> Select<'a> {
    pub fn new(data: &'a [u8], keep: &[i64]) -> Result<Option<Select<'a>>, Refusal> {
        let batch = Batch::open_sound(data)?;
        let n = batch.head.count as i64;
        if keep.windows(2).any(|pair| pair[0] >= pair[1]) || keep.iter().any(|i| *i < 0 || *i >= n) {
            return Err("keep must be rising record numbers of this batch");
        }
        if keep.is_empty() {
            return Ok(None);
        }
        let keep: Vec<usize> = keep.iter().map(|i| *i as usize).collect();
        let (h, w) = (batch.head, batch.at);
        let length =
            |offsets: usize, i: usize| (i32_at(batch.d, offsets + 4 * i + 4) - i32_at(batch.d, offsets + 4 * i)) as u64;
        let mut sizes = Sizes { origins: batch.size(w.origin_offsets, h.origins) as u64, ..Sizes::default() };
        for &i in &keep {
            sizes.values += length(w.value_offsets, i);
            if w.key_offsets != 0 {
                sizes.keys += length(w.key_offsets, i);
            }
            if w.header_lists != 0 {
                for j in batch.header_range(i)? {
                    sizes.header_count += 1;
                    sizes.names += length(w.name_offsets, j);
                    sizes.hvalues += length(w.hvalue_offsets, j);
                }
            }
        }
        let mut head = Head { count: keep.len(), columns: h.columns & !CHAIN | SPARSE, ..h };
        let at = plan(&mut head, &sizes)?;
        Ok(Some(Select { batch, keep, head, at }))
    }

    /// Fills zeroed bytes of exactly head.length.
    pub fn fill(&self, d: &mut [u8]) -> Result<(), Refusal> {
        let (batch, w, from, n) = (&self.batch, &self.at, &self.batch.at, self.batch.head.count);
        let origins = (0..batch.head.origins).map(|i| batch.origin(i)).collect::<Result<Vec<_>, _>>()?;
        begin(d, &self.head, w, &origins);
        let mut values = VarWriter::new(w.value_offsets, w.value_data);
        let mut keys = VarWriter::new(w.key_offsets, w.key_data);
        let mut names = VarWriter::new(w.name_offsets, w.name_data);
        let mut hvalues = VarWriter::new(w.hvalue_offsets, w.hvalue_data);
        for (row, &i) in self.keep.iter().enumerate() {
            if w.origin_index != 0 {
                d[w.origin_index + row] = batch.origin_number(i) as u8;
            }
            if w.value_bitmap != 0 && !batch.is_null(from.value_bitmap, i) {
                set_bit(d, w.value_bitmap, row);
            }
            values.push(d, batch.entry(from.value_offsets, from.value_data, n, i)?);
            if w.key_bitmap != 0 && !batch.is_null(from.key_bitmap, i) {
                set_bit(d, w.key_bitmap, row);
            }
            if w.key_offsets != 0 {
                keys.push(d, batch.entry(from.key_offsets, from.key_data, n, i)?);
            }
            if w.header_lists != 0 {
                for j in batch.header_range(i)? {
                    if w.hvalue_bitmap != 0 && !batch.is_null(from.hvalue_bitmap, j) {
                        set_bit(d, w.hvalue_bitmap, names.i);
                    }
                    names.push(d, batch.entry(from.name_offsets, from.name_data, from.header_count, j)?);
                    hvalues.push(d, batch.entry(from.hvalue_offsets, from.hvalue_data, from.header_count, j)?);
                }
                put_i32(d, w.header_lists, row + 1, names.i as i32);
            }
            if w.timestamps != 0 {
                put_i64(d, w.timestamps, row, batch.timestamp(i));
            }
            if w.expiries != 0 {
                put_i64(d, w.expiries, row, batch.expiry(i));
            }
            put(d, w.deltas + 4 * row, (batch.delta(i) as u32).to_le_bytes());
        }
        Ok(())
    }
}

/// Writes offsets and times (if given) and the checksum into a whole batch.
pub fn seal(d: &mut [u8], place_and_time: Option<(i64, i64)>, seed: Option<u32>) -> Result<(), Refusal> {
    let batch = Batch::open(d, 0)?;
    if batch.head.length != d.len() {
        return Err("the bytearray must hold exactly one batch");
    }
    if let Some((base_offset, timestamp)) = place_and_time {
        if base_offset < 0 || base_offset as u64 > MAX_OFFSET - u64::from(batch.head.span) {
            return Err("base_offset must be at least 0 and leave room for the batch's offsets below 2**63");
        }
        let greatest = batch.greatest_timestamp(timestamp);
        put(d, 16, base_offset.to_le_bytes());
        put(d, 32, timestamp.to_le_bytes());
        put(d, 40, greatest.to_le_bytes());
    }
    if let Some(seed) = seed {
        checksum(d, seed);
    }
    Ok(())
}

/// Writes the checksum into a whole batch.
pub fn checksum(d: &mut [u8], seed: u32) {
    let crc = crc32c(&d[8..], seed);
    put(d, 4, crc.to_le_bytes());
}

/// What the link of a whole batch with room for it must be.
fn link_of(d: &[u8], before: &[u8; LINK_BYTES], key: Option<&[u8; LINK_BYTES]>) -> [u8; LINK_BYTES] {
    let mut hasher = key.map_or_else(blake3::Hasher::new, blake3::Hasher::new_keyed);
    hasher.update(before);
    hasher.update(&d[8..d.len() - LINK_BYTES]);
    *hasher.finalize().as_bytes()
}

/// The first batch of data[start..stop] whose link does not follow from the one before it, or where there is none, and the
/// last link that did. start <= stop <= data.len().
pub fn follow(
    data: &[u8],
    start: usize,
    stop: usize,
    before: [u8; LINK_BYTES],
    key: Option<&[u8; LINK_BYTES]>,
) -> (usize, [u8; LINK_BYTES]) {
    let (mut at, mut last) = (start, before);
    while let Ok(head) = head_at(data, at, stop) {
        let d = &data[at..at + head.length];
        if !head.has(CHAIN)
            || d.len() < HEADER_BYTES + LINK_BYTES
            || link_of(d, &last, key) != d[d.len() - LINK_BYTES..]
        {
            break;
        }
        last.copy_from_slice(&d[d.len() - LINK_BYTES..]);
        at += d.len();
    }
    (at, last)
}

/// How many bytes of room for a link a batch lacks; refused if it would be too large with them.
pub fn room_for_link(d: &[u8]) -> Result<usize, Refusal> {
    let batch = Batch::open(d, 0)?;
    let lacking = if batch.head.has(CHAIN) { 0 } else { LINK_BYTES };
    if (batch.head.length + lacking) as u64 > MAX_BATCH_BYTES { Err(TOO_LARGE) } else { Ok(lacking) }
}

/// Gives a placed batch, now with room for it, its link: a hash of the link before it and of everything between the
/// checksum and itself. Then the checksum.
pub fn link(d: &mut [u8], seed: u32, before: &[u8; LINK_BYTES], key: Option<&[u8; LINK_BYTES]>) -> [u8; LINK_BYTES] {
    let at = d.len() - LINK_BYTES;
    let columns = u16::from_le_bytes([d[14], d[15]]) | CHAIN;
    put(d, 8, (d.len() as u32).to_le_bytes());
    put(d, 14, columns.to_le_bytes());
    let link = link_of(d, before, key);
    put(d, at, link);
    let crc = crc32c(&d[8..], seed);
    put(d, 4, crc.to_le_bytes());
    link
}
