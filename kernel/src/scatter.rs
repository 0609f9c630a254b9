//! Arrow to log batches: the rows of a record batch, sorted by partition, as unsealed batches.
//!
//! First every row gets its partition, then each partition's rows are cut into batches whose sizes are added up, then
//! each batch is filled. Columns come from outside: `Var::new` and `Lists::new` prove them before a position is used.

use crate::batch::{
    HEADER_BYTES, HEADER_NULLS, HEADERS, Head, KEY_NULLS, KEYS, Layout, Refusal, Sizes, TIMESTAMPS, VALUE_NULLS,
    i32_at, i64_at, plan,
};
use crate::fly::fnv1a;
use crate::make::{VarWriter, begin, put_i32, put_i64, set_bit};
use std::ops::Range;

pub const MAX_PARTITIONS: i64 = 1 << 16;
pub const BATCH_ROWS_MAX: usize = 1 << 20;
/// At most this many bytes of padding: every column but the header may be padded by 7.
const PADDING_BYTES: usize = 15 * 8;

const BAD_COLUMN: Refusal = "a column does not add up: its offsets fall, or it is shorter than its rows need";

/// A column of bytes as Arrow has it. What a null entry spans does not count.
pub struct Var<'a> {
    pub bitmap: Option<&'a [u8]>,
    pub offsets: &'a [u8],
    pub data: &'a [u8],
}

fn offsets_sound(offsets: &[u8], n: usize, limit: usize) -> bool {
    let Some(d) = offsets.get(..4 * (n + 1)) else { return false };
    let rising =
        d.chunks_exact(4).zip(d[4..].chunks_exact(4)).fold(true, |ok, (a, b)| ok & (i32_at(a, 0) <= i32_at(b, 0)));
    rising && i32_at(d, 0) >= 0 && i32_at(d, 4 * n) as usize <= limit
}

impl<'a> Var<'a> {
    pub fn new(bitmap: Option<&'a [u8]>, offsets: &'a [u8], data: &'a [u8], n: usize) -> Result<Var<'a>, Refusal> {
        let sound = offsets_sound(offsets, n, data.len()) && bitmap.is_none_or(|bits| bits.len() >= n.div_ceil(8));
        if sound { Ok(Var { bitmap, offsets, data }) } else { Err(BAD_COLUMN) }
    }

    fn is_null(&self, i: usize) -> bool {
        self.bitmap.is_some_and(|bits| bits[i / 8] >> (i % 8) & 1 == 0)
    }

    fn get(&self, i: usize) -> Option<&'a [u8]> {
        if self.is_null(i) { None } else { Some(self.entry(i)) }
    }

    fn entry(&self, i: usize) -> &'a [u8] {
        &self.data[i32_at(self.offsets, 4 * i) as usize..i32_at(self.offsets, 4 * i + 4) as usize]
    }

    /// Bytes of entries a to b - 1.
    fn span(&self, a: usize, b: usize) -> usize {
        (i32_at(self.offsets, 4 * b) - i32_at(self.offsets, 4 * a)) as usize
    }
}

/// The headers of all rows.
pub struct Lists<'a> {
    offsets: &'a [u8],
    names: Var<'a>,
    values: Var<'a>,
}

impl<'a> Lists<'a> {
    /// From (list offsets, name offsets, name bytes, value offsets, value bytes) and the bitmap of the values, if some are null.
    pub fn new(given: [&'a [u8]; 5], bitmap: Option<&'a [u8]>, n: usize) -> Result<Lists<'a>, Refusal> {
        let [offsets, name_offsets, name_data, value_offsets, value_data] = given;
        if !offsets_sound(offsets, n, i32::MAX as usize) {
            return Err(BAD_COLUMN);
        }
        let entries = i32_at(offsets, 4 * n) as usize;
        Ok(Lists {
            offsets,
            names: Var::new(None, name_offsets, name_data, entries)?,
            values: Var::new(bitmap, value_offsets, value_data, entries)?,
        })
    }

    fn range(&self, i: usize) -> Range<usize> {
        i32_at(self.offsets, 4 * i) as usize..i32_at(self.offsets, 4 * i + 4) as usize
    }
}

/// Everything that is scattered.
pub struct Rows<'a> {
    pub count: usize,
    pub value: Var<'a>,
    pub key: Option<Var<'a>>,
    pub headers: Option<Lists<'a>>,
    pub timestamps: Option<&'a [u8]>,
    pub chosen: Option<&'a [u8]>,
    pub partitions: u32,
    pub turn: u32,
    pub origin: &'a [u8],
    pub flags: u16,
    pub batch_bytes_max: usize,
}

/// One batch to be: some of the rows in `order`.
pub struct Part {
    pub partition: u32,
    pub rows: Range<usize>,
    pub head: Head,
    at: Layout,
}

pub struct Scatter {
    /// Row numbers by partition; empty if all rows go to one, in their own order.
    order: Vec<u32>,
    pub parts: Vec<Part>,
}

/// Why not; a partition out of range comes with its row.
pub enum Refused {
    Row(usize, i32),
    Other(Refusal),
}

impl From<Refusal> for Refused {
    fn from(why: Refusal) -> Refused {
        Refused::Other(why)
    }
}

/// What the rows of one batch come to.
#[derive(Default)]
struct Sum {
    sizes: Sizes,
    nulls: bool,
    keys: bool,
    key_nulls: bool,
    header_nulls: bool,
    bytes: usize,
}

impl Rows<'_> {
    fn partition(&self, i: usize) -> Result<u32, Refused> {
        let chosen = self.chosen.map_or(-1, |chosen| i32_at(chosen, 4 * i));
        if chosen < -1 || chosen >= self.partitions as i32 {
            return Err(Refused::Row(i, chosen));
        }
        if chosen >= 0 {
            return Ok(chosen as u32);
        }
        match self.key.as_ref().and_then(|key| key.get(i)) {
            Some(key) if !key.is_empty() => Ok(fnv1a(key) % self.partitions),
            _ => Ok(self.turn),
        }
    }

    /// Adds row i to the sum, unless with the most bytes it can take in a batch that would pass `limit`.
    fn add(&self, i: usize, sum: &mut Sum, limit: usize) -> bool {
        let value = self.value.get(i);
        let key = self.key.as_ref().and_then(|key| key.get(i));
        let headers = self.headers.as_ref().map_or(0..0, |lists| lists.range(i));
        let (mut names, mut hvalues, mut bits, mut header_nulls) = (0, 0, 0, false);
        if let Some(lists) = &self.headers {
            names = lists.names.span(headers.start, headers.end);
            if lists.values.bitmap.is_none() {
                hvalues = lists.values.span(headers.start, headers.end);
            } else {
                bits = headers.len(); // a bit each, and a byte for it is enough
                for j in headers.clone() {
                    let value = lists.values.get(j);
                    header_nulls |= value.is_none();
                    hvalues += value.map_or(0, <[u8]>::len);
                }
            }
        }
        let (value_size, key_size) = (value.map_or(0, <[u8]>::len), key.map_or(0, <[u8]>::len));
        // An offset or a time in each column that may be there, and less than a byte for the bits in two bitmaps.
        let fixed = 5
            + if self.key.is_some() { 4 } else { 0 }
            + if self.headers.is_some() { 4 + 8 * headers.len() + bits } else { 0 }
            + if self.timestamps.is_some() { 8 } else { 0 };
        let bytes = sum.bytes + fixed + value_size + key_size + names + hvalues;
        if bytes > limit {
            return false;
        }
        sum.bytes = bytes;
        sum.nulls |= value.is_none();
        sum.keys |= key.is_some();
        sum.key_nulls |= key.is_none();
        sum.header_nulls |= header_nulls;
        sum.sizes.values += value_size as u64;
        sum.sizes.keys += key_size as u64;
        sum.sizes.header_count += headers.len() as u64;
        sum.sizes.names += names as u64;
        sum.sizes.hvalues += hvalues as u64;
        true
    }

    /// The header and layout of a batch of these many rows that come to `sum`.
    fn plan(&self, count: usize, sum: &Sum) -> Result<(Head, Layout), Refusal> {
        let when = |yes: bool, column: u16| if yes { column } else { 0 };
        let columns = when(sum.nulls, VALUE_NULLS)
            | when(sum.keys, KEYS)
            | when(sum.keys && sum.key_nulls, KEY_NULLS)
            | when(sum.sizes.header_count > 0, HEADERS)
            | when(sum.header_nulls, HEADER_NULLS)
            | when(self.timestamps.is_some(), TIMESTAMPS);
        let sizes = Sizes { origins: self.origin.len() as u64, ..sum.sizes };
        let mut head = Head { flags: self.flags, columns, count, span: count as u32, origins: 1, ..Head::default() };
        let at = plan(&mut head, &sizes)?;
        Ok((head, at))
    }
}

impl Scatter {
    pub fn new(rows: &Rows) -> Result<Scatter, Refused> {
        let (order, ends) = sort(rows)?;
        let mut scatter = Scatter { order, parts: Vec::new() };
        let mut from = 0;
        for (partition, end) in ends {
            scatter.cut(rows, partition, from..end)?;
            from = end;
        }
        Ok(scatter)
    }

    fn row(&self, at: usize) -> usize {
        if self.order.is_empty() { at } else { self.order[at] as usize }
    }

    /// Cuts the rows of one partition into batches.
    fn cut(&mut self, rows: &Rows, partition: u32, all: Range<usize>) -> Result<(), Refusal> {
        let empty = HEADER_BYTES + rows.origin.len() + PADDING_BYTES;
        let mut from = all.start;
        while from < all.end {
            let mut sum = Sum { bytes: empty, ..Sum::default() };
            rows.add(self.row(from), &mut sum, usize::MAX);
            let mut to = from + 1;
            let last = all.end.min(from + BATCH_ROWS_MAX);
            while to < last && rows.add(self.row(to), &mut sum, rows.batch_bytes_max) {
                to += 1;
            }
            let (head, at) = rows.plan(to - from, &sum)?;
            self.parts.push(Part { partition, rows: from..to, head, at });
            from = to;
        }
        Ok(())
    }

    /// Fills a batch's bytes, exactly head.length of them.
    pub fn fill(&self, rows: &Rows, part: &Part, d: &mut [u8]) {
        d.fill(0);
        let w = &part.at;
        begin(d, &part.head, w, &[rows.origin]);
        let (mut values, mut keys) =
            (VarWriter::new(w.value_offsets, w.value_data), VarWriter::new(w.key_offsets, w.key_data));
        for (row, at) in part.rows.clone().enumerate() {
            let i = self.row(at);
            let value = rows.value.get(i);
            if w.value_bitmap != 0 && value.is_some() {
                set_bit(d, w.value_bitmap, row);
            }
            values.push(d, value.unwrap_or(&[]));
            if w.key_offsets != 0 {
                let key = rows.key.as_ref().and_then(|key| key.get(i));
                if w.key_bitmap != 0 && key.is_some() {
                    set_bit(d, w.key_bitmap, row);
                }
                keys.push(d, key.unwrap_or(&[]));
            }
            if let Some(times) = rows.timestamps {
                put_i64(d, w.timestamps, row, i64_at(times, 8 * i));
            }
        }
        if let Some(lists) = rows.headers.as_ref().filter(|_| w.header_lists != 0) {
            self.fill_headers(lists, part, d);
        }
    }

    fn fill_headers(&self, lists: &Lists, part: &Part, d: &mut [u8]) {
        let w = &part.at;
        let mut names = VarWriter::new(w.name_offsets, w.name_data);
        let mut values = VarWriter::new(w.hvalue_offsets, w.hvalue_data);
        let mut total = 0;
        for (row, at) in part.rows.clone().enumerate() {
            for j in lists.range(self.row(at)) {
                let value = lists.values.get(j);
                names.push(d, lists.names.entry(j));
                values.push(d, value.unwrap_or(&[]));
                if w.hvalue_bitmap != 0 && value.is_some() {
                    set_bit(d, w.hvalue_bitmap, total);
                }
                total += 1;
            }
            put_i32(d, w.header_lists, row + 1, total as i32);
        }
    }
}

/// The rows by partition (empty if all go to one), and (partition, where its rows end) of those that have any.
type Sorted = (Vec<u32>, Vec<(u32, usize)>);

fn sort(rows: &Rows) -> Result<Sorted, Refused> {
    if rows.count == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    let mut counts = vec![0usize; rows.partitions as usize];
    let mut partitions = Vec::with_capacity(rows.count);
    for i in 0..rows.count {
        let partition = rows.partition(i)?;
        counts[partition as usize] += 1;
        partitions.push(partition);
    }
    let mut ends = Vec::new();
    let mut end = 0;
    for (partition, count) in counts.iter_mut().enumerate() {
        let begin = end;
        end += *count;
        if *count > 0 {
            ends.push((partition as u32, end));
        }
        *count = begin;
    }
    if ends.len() == 1 {
        return Ok((Vec::new(), ends));
    }
    let mut order = vec![0; rows.count];
    for (i, partition) in partitions.iter().enumerate() {
        let next = &mut counts[*partition as usize];
        order[*next] = i as u32;
        *next += 1;
    }
    Ok((order, ends))
}
