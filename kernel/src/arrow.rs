//! Log batches to Arrow: the records of a range of offsets as whole columns, checked on the way.
//!
//! First a walk that checks every batch it takes and adds up how large each column will be, then one copy into memory of
//! exactly that size: nothing is allocated per record or per batch but the notes of the walk. Works on plain bytes, which
//! may be a mapped file: every position is proved by the checks of `batch.rs` before it is used. `arrow_py.rs` does the
//! talking to Python, `scatter.rs` goes the other way.

use crate::batch::{Batch, CONTROL, OFFSETS_FELL, ZEROS, head_at, i32_at, put, sound_at};

pub const OFFSET: u8 = 1;
pub const TIMESTAMP: u8 = 2;
pub const VALUE: u8 = 4;
pub const KEY: u8 = 8;
pub const HEADERS: u8 = 16;
pub const ORIGIN: u8 = 32;
pub const ALL_COLUMNS: i64 = 63;
pub const BUFFERS: usize = 16;
pub const ROWS_CEILING: i64 = 1 << 24;
pub const BYTES_CEILING: i64 = 1 << 30;
/// Origins are short in a batch and long in a column, where each record has its own: this much, then the result is full.
const ORIGIN_BYTES_MAX: usize = 64 * 1024 * 1024;
const MAX_ORIGINS: usize = 256;
/// The two offsets of a header.
const HEADER_ENTRY_BYTES: usize = 8;
/// What one invalid sequence becomes: U+FFFD.
const REPLACEMENT: [u8; 3] = [0xEF, 0xBF, 0xBD];

pub struct Wish {
    pub seed: Option<u32>,
    pub first: u64,
    pub last: u64,
    pub rows_max: usize,
    pub bytes_max: usize,
    pub columns: u8,
    pub now: i64,
}

/// Records a to b - 1 of the batch at `start`. Small: there is one for every batch.
struct Run {
    start: usize,
    a: u32,
    b: u32,
}

/// What was found: where it is, and how large its columns are.
pub struct Gather<'a> {
    data: &'a [u8],
    columns: u8,
    runs: Vec<Run>,
    /// How long each origin of the batch at hand is; only the entries it has are kept up.
    lengths: [usize; MAX_ORIGINS],
    pub count: usize,
    values: usize,
    keys: usize,
    header_count: usize,
    names: usize,
    hvalues: usize,
    origins: usize,
    value_nulls: bool,
    key_nulls: bool,
    hvalue_nulls: bool,
    pub position: usize,
    pub next_offset: u64,
    pub reason: i64,
}

impl<'a> Gather<'a> {
    pub fn new(data: &'a [u8], start: usize, stop: usize, wish: &Wish) -> Gather<'a> {
        let mut found = Gather {
            data,
            columns: wish.columns,
            runs: Vec::new(),
            lengths: [0; MAX_ORIGINS],
            count: 0,
            values: 0,
            keys: 0,
            header_count: 0,
            names: 0,
            hvalues: 0,
            origins: 0,
            value_nulls: false,
            key_nulls: false,
            hvalue_nulls: false,
            position: start,
            next_offset: wish.first,
            reason: ZEROS,
        };
        if let Err(reason) = found.walk(stop, wish) {
            found.reason = reason;
        }
        found
    }

    fn walk(&mut self, stop: usize, wish: &Wish) -> Result<(), i64> {
        let data = self.data;
        let mut floor = 0;
        while self.position < stop
            && self.next_offset < wish.last
            && self.count < wish.rows_max
            && self.bytes() < wish.bytes_max
        {
            let head = head_at(data, self.position, stop)?;
            if head.base_offset < floor {
                return Err(OFFSETS_FELL);
            }
            floor = head.base_offset + u64::from(head.span);
            if floor <= self.next_offset {
                self.position += head.length;
                continue;
            }
            if head.base_offset >= wish.last {
                self.next_offset = wish.last;
                break;
            }
            let batch = sound_at(data, self.position, head, wish.seed)?;
            if head.flags & CONTROL == 0
                && let Some(full) = self.take(&batch, wish)
            {
                self.next_offset = full;
                break;
            }
            if floor > wish.last {
                self.next_offset = wish.last;
                break;
            }
            self.next_offset = floor;
            self.position += head.length;
        }
        Ok(())
    }

    /// Bytes in the columns of bytes so far. A header counts even if it is empty: one row may have millions.
    fn bytes(&self) -> usize {
        self.values + self.keys + self.names + self.hvalues + self.origins + HEADER_ENTRY_BYTES * self.header_count
    }

    fn wants(&self, column: u8) -> bool {
        self.columns & column != 0
    }

    /// Takes note of the records asked for; Some(offset) if there is no room for this one and those behind it.
    fn take(&mut self, batch: &Batch, wish: &Wish) -> Option<u64> {
        let base = batch.head.base_offset;
        let a = batch.rows_below(wish.first.saturating_sub(base));
        let b = batch.rows_below(wish.last - base);
        let mut end = b;
        if self.wants(ORIGIN) {
            for (i, length) in self.lengths.iter_mut().enumerate().take(batch.head.origins) {
                *length = lossy_length(origin(batch, i));
            }
            end = self.room(batch, a, b);
        }
        let full = (end < b).then(|| base + batch.delta(end));
        if batch.at.expiries == 0 || wish.now == 0 {
            self.note(batch, a, end);
        } else {
            let gone = |i: usize| batch.expiry(i) != 0 && batch.expiry(i) <= wish.now;
            let mut i = a;
            while i < end {
                let from = i;
                while i < end && !gone(i) {
                    i += 1;
                }
                self.note(batch, from, i);
                while i < end && gone(i) {
                    i += 1;
                }
            }
        }
        full
    }

    /// How far the origin column has room for records a to b - 1; at least one if nothing was taken yet.
    fn room(&self, batch: &Batch, a: usize, b: usize) -> usize {
        let longest = self.lengths[..batch.head.origins].iter().max().map_or(0, |longest| *longest);
        if self.origins + longest * b.saturating_sub(a) <= ORIGIN_BYTES_MAX {
            return b;
        }
        let mut used = self.origins;
        for i in a..b {
            used += self.lengths[batch.origin_number(i)];
            if used > ORIGIN_BYTES_MAX && (i > a || self.count > 0) {
                return i;
            }
        }
        b
    }

    /// Adds up the sizes of one run.
    fn note(&mut self, batch: &Batch, a: usize, b: usize) {
        if a >= b {
            return;
        }
        let w = &batch.at;
        let size = |offsets: usize, a: usize, b: usize| {
            (i32_at(batch.d, offsets + 4 * b) - i32_at(batch.d, offsets + 4 * a)) as usize
        };
        self.count += b - a;
        if self.wants(VALUE) {
            self.values += size(w.value_offsets, a, b);
            self.value_nulls = self.value_nulls || has_nulls(batch, w.value_bitmap, a, b);
        }
        if self.wants(KEY) {
            if w.key_offsets != 0 {
                self.keys += size(w.key_offsets, a, b);
            }
            self.key_nulls = self.key_nulls || w.key_offsets == 0 || has_nulls(batch, w.key_bitmap, a, b);
        }
        if self.wants(HEADERS) && w.header_lists != 0 {
            let (from, to) = header_span(batch, a, b);
            self.header_count += to - from;
            self.hvalues += size(w.hvalue_offsets, from, to);
            self.hvalue_nulls = self.hvalue_nulls || has_nulls(batch, w.hvalue_bitmap, from, to);
            self.names += if names(batch, from, to).is_ascii() {
                size(w.name_offsets, from, to)
            } else {
                (from..to).map(|i| lossy_length(names(batch, i, i + 1))).sum()
            };
        }
        if self.wants(ORIGIN) {
            self.origins += if w.origin_index == 0 {
                self.lengths[0] * (b - a)
            } else {
                batch.d[w.origin_index + a..w.origin_index + b]
                    .iter()
                    .map(|number| self.lengths[*number as usize])
                    .sum()
            };
        }
        self.runs.push(Run { start: self.position, a: a as u32, b: b as u32 });
    }

    /// The length of each buffer of the result in bytes; None for one that is not made.
    pub fn lengths(&self) -> [Option<usize>; BUFFERS] {
        let n = self.count;
        let (value, key, headers) = (self.wants(VALUE), self.wants(KEY), self.wants(HEADERS));
        let when = |yes: bool, length: usize| yes.then_some(length);
        [
            when(self.wants(OFFSET), 8 * n),
            when(self.wants(TIMESTAMP), 8 * n),
            when(value && self.value_nulls, n.div_ceil(8)),
            when(value, 4 * (n + 1)),
            when(value, self.values),
            when(key && self.key_nulls, n.div_ceil(8)),
            when(key, 4 * (n + 1)),
            when(key, self.keys),
            when(headers, 4 * (n + 1)),
            when(headers, 4 * (self.header_count + 1)),
            when(headers, self.names),
            when(headers, 4 * (self.header_count + 1)),
            when(headers, self.hvalues),
            when(self.wants(ORIGIN), 4 * (n + 1)),
            when(self.wants(ORIGIN), self.origins),
            when(headers && self.hvalue_nulls, self.header_count.div_ceil(8)),
        ]
    }

    /// Fills buffers of exactly `lengths`, every byte of them; one that is not made is empty. Panics if the bytes are no
    /// longer those that were checked.
    pub fn fill(&self, out: [&mut [u8]; BUFFERS]) {
        let [offset, timestamp, value_bits, v1, v2, key_bits, k1, k2, lists, n1, n2, h1, h2, o1, o2, hvalue_bits] = out;
        value_bits.fill(0);
        key_bits.fill(0);
        hvalue_bits.fill(0);
        let (mut values, mut keys) = (VarOut::new(v1, v2), VarOut::new(k1, k2));
        let (mut names, mut hvalues, mut origins) = (VarOut::new(n1, n2), VarOut::new(h1, h2), VarOut::new(o1, o2));
        if self.wants(HEADERS) {
            put(lists, 0, [0; 4]);
        }
        let mut row = 0;
        for run in &self.runs {
            let batch = &Batch::open(self.data, run.start).expect("checked by walk");
            let (a, b) = (run.a as usize, run.b as usize);
            let (w, n) = (&batch.at, b - a);
            if self.wants(OFFSET) {
                put_offsets(&mut offset[8 * row..8 * (row + n)], batch, a);
            }
            if self.wants(TIMESTAMP) {
                put_timestamps(&mut timestamp[8 * row..8 * (row + n)], batch, a);
            }
            if self.wants(VALUE) {
                values.push_run(batch, w.value_offsets, w.value_data, a, b);
                if self.value_nulls {
                    put_bits(value_bits, row, batch, w.value_bitmap, a, b);
                }
            }
            if self.wants(KEY) {
                if w.key_offsets == 0 {
                    keys.push_empty(n);
                } else {
                    keys.push_run(batch, w.key_offsets, w.key_data, a, b);
                    if self.key_nulls {
                        put_bits(key_bits, row, batch, w.key_bitmap, a, b);
                    }
                }
            }
            if self.wants(HEADERS) {
                if self.hvalue_nulls && w.header_lists != 0 {
                    let (from, to) = header_span(batch, a, b);
                    put_bits(hvalue_bits, names.i, batch, w.hvalue_bitmap, from, to);
                }
                put_headers(lists, row, &mut names, &mut hvalues, batch, a, b);
            }
            if self.wants(ORIGIN) {
                put_origins(&mut origins, batch, a, b);
            }
            row += n;
        }
    }
}

fn origin<'a>(batch: &Batch<'a>, number: usize) -> &'a [u8] {
    let at = batch.at.origin_offsets + 4 * number;
    let (from, to) = (i32_at(batch.d, at) as usize, i32_at(batch.d, at + 4) as usize);
    &batch.d[batch.at.origin_data + from..batch.at.origin_data + to]
}

/// The header entries of records a to b - 1.
fn header_span(batch: &Batch, a: usize, b: usize) -> (usize, usize) {
    let lists = batch.at.header_lists;
    (i32_at(batch.d, lists + 4 * a) as usize, i32_at(batch.d, lists + 4 * b) as usize)
}

/// The bytes of header names a to b - 1.
fn names<'a>(batch: &Batch<'a>, a: usize, b: usize) -> &'a [u8] {
    let (offsets, data) = (batch.at.name_offsets, batch.at.name_data);
    &batch.d[data + i32_at(batch.d, offsets + 4 * a) as usize..data + i32_at(batch.d, offsets + 4 * b) as usize]
}

/// Bytes of `text` once it is valid UTF-8.
fn lossy_length(text: &[u8]) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    let of = |chunk: std::str::Utf8Chunk| chunk.valid().len() + if chunk.invalid().is_empty() { 0 } else { 3 };
    text.utf8_chunks().map(of).sum()
}

fn has_nulls(batch: &Batch, bitmap: usize, a: usize, b: usize) -> bool {
    bitmap != 0 && (a..b).any(|i| batch.is_null(bitmap, i))
}

fn put_offsets(out: &mut [u8], batch: &Batch, a: usize) {
    let base = batch.head.base_offset;
    if batch.at.deltas == 0 {
        for (i, to) in out.chunks_exact_mut(8).enumerate() {
            put(to, 0, (base + (a + i) as u64).to_le_bytes());
        }
    } else {
        for (i, to) in out.chunks_exact_mut(8).enumerate() {
            put(to, 0, (base + batch.delta(a + i)).to_le_bytes());
        }
    }
}

fn put_timestamps(out: &mut [u8], batch: &Batch, a: usize) {
    if batch.at.timestamps != 0 {
        let from = batch.at.timestamps + 8 * a;
        out.copy_from_slice(&batch.d[from..from + out.len()]);
    } else {
        let time = batch.head.timestamp.to_le_bytes();
        for to in out.chunks_exact_mut(8) {
            put(to, 0, time);
        }
    }
}

/// Bits a to b - 1 of a bitmap (all set if the batch has none) to the bits from `row` on, which are clear.
fn put_bits(out: &mut [u8], row: usize, batch: &Batch, bitmap: usize, a: usize, b: usize) {
    let mut i = a;
    while i < b {
        let (to, at) = ((row + i - a) / 8, (row + i - a) % 8);
        let n = (8 - at).min(b - i);
        let bits = if bitmap == 0 {
            0xFF
        } else {
            let low = batch.d[bitmap + i / 8] >> (i % 8);
            if i % 8 + n > 8 { low | batch.d[bitmap + i / 8 + 1] << (8 - i % 8) } else { low }
        };
        out[to] |= (bits & (0xFF >> (8 - n))) << at;
        i += n;
    }
}

fn put_headers(
    lists: &mut [u8],
    row: usize,
    to_names: &mut VarOut,
    to_values: &mut VarOut,
    batch: &Batch,
    a: usize,
    b: usize,
) {
    let (w, before) = (&batch.at, to_names.i as i32);
    let out = lists[4 * (row + 1)..4 * (row + 1 + b - a)].chunks_exact_mut(4);
    if w.header_lists == 0 {
        out.for_each(|to| put(to, 0, before.to_le_bytes()));
        return;
    }
    let (from, to) = header_span(batch, a, b);
    let own = batch.d[w.header_lists + 4 * (a + 1)..w.header_lists + 4 * (b + 1)].chunks_exact(4);
    for (to, one) in out.zip(own) {
        put(to, 0, (i32_at(one, 0) - from as i32 + before).to_le_bytes());
    }
    to_values.push_run(batch, w.hvalue_offsets, w.hvalue_data, from, to);
    if names(batch, from, to).is_ascii() {
        to_names.push_run(batch, w.name_offsets, w.name_data, from, to);
    } else {
        (from..to).for_each(|i| to_names.push_lossy(names(batch, i, i + 1)));
    }
}

fn put_origins(out: &mut VarOut, batch: &Batch, a: usize, b: usize) {
    if batch.at.origin_index == 0 {
        out.push_lossy(origin(batch, 0));
        out.repeat(b - a - 1);
    } else {
        (a..b).for_each(|i| out.push_lossy(origin(batch, batch.origin_number(i))));
    }
}

/// A column of bytes that is being written: n + 1 offsets, and the bytes.
struct VarOut<'o> {
    offsets: &'o mut [u8],
    data: &'o mut [u8],
    i: usize,
    size: usize,
}

impl<'o> VarOut<'o> {
    fn new(offsets: &'o mut [u8], data: &'o mut [u8]) -> VarOut<'o> {
        if !offsets.is_empty() {
            put(offsets, 0, [0; 4]);
        }
        VarOut { offsets, data, i: 0, size: 0 }
    }

    /// The next n offsets.
    fn next(&mut self, n: usize) -> std::slice::ChunksExactMut<'_, u8> {
        let from = 4 * (self.i + 1);
        self.i += n;
        self.offsets[from..from + 4 * n].chunks_exact_mut(4)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.data[self.size..self.size + bytes.len()].copy_from_slice(bytes);
        self.size += bytes.len();
    }

    /// Entries a to b - 1 of a sound var.
    fn push_run(&mut self, batch: &Batch, offsets: usize, data: usize, a: usize, b: usize) {
        let (from, to) = (i32_at(batch.d, offsets + 4 * a), i32_at(batch.d, offsets + 4 * b));
        let up = self.size as i32 - from;
        self.write(&batch.d[data + from as usize..data + to as usize]);
        let own = batch.d[offsets + 4 * (a + 1)..offsets + 4 * (b + 1)].chunks_exact(4);
        for (to, one) in self.next(b - a).zip(own) {
            put(to, 0, (i32_at(one, 0) + up).to_le_bytes());
        }
    }

    fn push_empty(&mut self, n: usize) {
        let size = (self.size as i32).to_le_bytes();
        self.next(n).for_each(|to| put(to, 0, size));
    }

    fn push_lossy(&mut self, text: &[u8]) {
        if text.is_ascii() {
            self.write(text);
        } else {
            for chunk in text.utf8_chunks() {
                self.write(chunk.valid().as_bytes());
                if !chunk.invalid().is_empty() {
                    self.write(&REPLACEMENT);
                }
            }
        }
        self.push_empty(1);
    }

    /// The last entry n times more.
    fn repeat(&mut self, n: usize) {
        let from = i32_at(self.offsets, 4 * (self.i - 1)) as usize;
        let (length, end) = (self.size - from, self.size + n * (self.size - from));
        while self.size < end {
            let more = (self.size - from).min(end - self.size);
            self.data.copy_within(from..from + more, self.size);
            self.size += more;
        }
        let mut at = (end - n * length) as i32;
        for to in self.next(n) {
            at += length as i32;
            put(to, 0, at.to_le_bytes());
        }
    }
}
