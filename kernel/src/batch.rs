//! Record batches: where columns lie, whether they are sound, and walking over many of them.
//!
//! Works on plain byte slices so that it can be read without knowing Python: `make.rs` makes batches, `lib.rs` does the
//! talking to Python. The layout is docs/LOG_FORMAT.md section 3. Nothing here panics on hostile bytes: every position
//! is proved by `place` or checked where it is used, and no size is believed before the data is known to be there.

pub type Refusal = &'static str;

pub const HEADER_BYTES: usize = 64;
pub const MAX_BATCH_BYTES: u64 = 64 * 1024 * 1024;
pub const MAX_ORIGINS_ENTRIES: usize = 255;
pub const MAX_OFFSET: u64 = i64::MAX as u64;
const MAGIC: [u8; 4] = *b"QRB1";

pub const AT_MOST_ONCE: u16 = 1;
pub const CONTROL: u16 = 2;
pub const KNOWN_FLAGS: u16 = 7;
pub const VALUE_NULLS: u16 = 1;
pub const KEYS: u16 = 2;
pub const KEY_NULLS: u16 = 4;
pub const HEADERS: u16 = 8;
pub const TIMESTAMPS: u16 = 16;
pub const EXPIRY: u16 = 32;
pub const SPARSE: u16 = 64;
pub const CHAIN: u16 = 128;
pub const HEADER_NULLS: u16 = 256;
const KNOWN_COLUMNS: u16 = 511;
pub const LINK_BYTES: usize = 32;

pub const ZEROS: i64 = 0;
pub const CUT_SHORT: i64 = -1;
pub const BAD_HEADER: i64 = -2;
pub const BAD_CHECKSUM: i64 = -3;
pub const BAD_COLUMNS: i64 = -4;
pub const OFFSETS_FELL: i64 = -5;

const DO_NOT_ADD_UP: Refusal = "batch columns do not add up: a column or an entry lies outside its place";
pub const TOO_LARGE: Refusal = "batch too large: over 64 MiB; split it into several batches";

/// CRC-32C of data, continued from `value`.
pub fn crc32c(data: &[u8], value: u32) -> u32 {
    let mut digest = crc_fast::Digest::new_with_init_state(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(!value));
    digest.update(data);
    digest.finalize() as u32
}

fn bytes_at<const N: usize>(d: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&d[at..at + N]);
    out
}

pub fn i32_at(d: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(bytes_at(d, at))
}

pub fn u32_at(d: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(d, at))
}

pub fn i64_at(d: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(bytes_at(d, at))
}

pub fn u16_at(d: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(d, at))
}

fn u64_at(d: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(d, at))
}

pub fn put<const N: usize>(d: &mut [u8], at: usize, bytes: [u8; N]) {
    d[at..at + N].copy_from_slice(&bytes);
}

fn pad8(size: u64) -> u64 {
    (size + 7) & !7
}

//   0      4      8       12     14       16           24     28    32         40             48           56
//  |magic |crc   |length |flags |columns |base_offset |count |span |timestamp |max_timestamp |producer_id |sequence
//   60     62       64
//  |epoch |origins |columns...
#[derive(Clone, Copy, Default)]
pub struct Head {
    pub length: usize,
    pub flags: u16,
    pub columns: u16,
    pub base_offset: u64,
    pub count: usize,
    pub span: u32,
    pub timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: u64,
    pub sequence: u32,
    pub epoch: u16,
    pub origins: usize,
}

impl Head {
    /// The header in the first 64 bytes of d, or None if a field is out of its range.
    fn read(d: &[u8]) -> Option<Head> {
        if d.len() < HEADER_BYTES || d[..4] != MAGIC {
            return None;
        }
        let head = Head {
            length: u32_at(d, 8) as usize,
            flags: u16_at(d, 12),
            columns: u16_at(d, 14),
            base_offset: u64_at(d, 16),
            count: u32_at(d, 24) as usize,
            span: u32_at(d, 28),
            timestamp: i64_at(d, 32),
            max_timestamp: i64_at(d, 40),
            producer_id: u64_at(d, 48),
            sequence: u32_at(d, 56),
            epoch: u16_at(d, 60),
            origins: u16_at(d, 62) as usize,
        };
        let span_sound =
            if head.has(SPARSE) { head.span as usize >= head.count } else { head.span as usize == head.count };
        let sound = (HEADER_BYTES..=MAX_BATCH_BYTES as usize).contains(&head.length)
            && head.length.is_multiple_of(8)
            && head.flags & !KNOWN_FLAGS == 0
            && head.columns & !KNOWN_COLUMNS == 0
            && (head.has(KEYS) || !head.has(KEY_NULLS))
            && (head.has(HEADERS) || !head.has(HEADER_NULLS))
            && head.count >= 1
            && span_sound
            && head.base_offset <= MAX_OFFSET - u64::from(head.span)
            && (1..=MAX_ORIGINS_ENTRIES).contains(&head.origins);
        sound.then_some(head)
    }

    pub fn has(&self, column: u16) -> bool {
        self.columns & column != 0
    }

    /// Writes the header; the checksum stays zero until the batch is sealed.
    pub fn write(&self, d: &mut [u8]) {
        put(d, 0, MAGIC);
        put(d, 4, [0; 4]);
        put(d, 8, (self.length as u32).to_le_bytes());
        put(d, 12, self.flags.to_le_bytes());
        put(d, 14, self.columns.to_le_bytes());
        put(d, 16, self.base_offset.to_le_bytes());
        put(d, 24, (self.count as u32).to_le_bytes());
        put(d, 28, self.span.to_le_bytes());
        put(d, 32, self.timestamp.to_le_bytes());
        put(d, 40, self.max_timestamp.to_le_bytes());
        put(d, 48, self.producer_id.to_le_bytes());
        put(d, 56, self.sequence.to_le_bytes());
        put(d, 60, self.epoch.to_le_bytes());
        put(d, 62, (self.origins as u16).to_le_bytes());
    }
}

/// Where each column is, relative to the start of the batch; 0 where absent.
#[derive(Clone, Copy, Default)]
pub struct Layout {
    pub origin_offsets: usize,
    pub origin_data: usize,
    pub origin_index: usize,
    pub value_bitmap: usize,
    pub value_offsets: usize,
    pub value_data: usize,
    pub key_bitmap: usize,
    pub key_offsets: usize,
    pub key_data: usize,
    pub header_lists: usize,
    pub header_count: usize,
    pub name_offsets: usize,
    pub name_data: usize,
    pub hvalue_offsets: usize,
    pub hvalue_data: usize,
    pub hvalue_bitmap: usize,
    pub timestamps: usize,
    pub expiries: usize,
    pub deltas: usize,
    pub end: usize,
}

/// Hands out places one behind the other; `limit` is where the batch ends (or may end at most).
struct Places {
    pos: u64,
    limit: u64,
}

impl Places {
    fn take(&mut self, size: u64) -> Result<usize, Refusal> {
        let at = self.pos;
        self.pos = pad8(at + size);
        if self.pos > self.limit { Err(DO_NOT_ADD_UP) } else { Ok(at as usize) }
    }

    /// Offsets and data of a var of n, whose size is asked of `size` once the offsets are known to be there.
    fn var(&mut self, n: usize, size: impl FnOnce(usize) -> Result<u64, Refusal>) -> Result<(usize, usize), Refusal> {
        let offsets = self.take(4 * (n as u64 + 1))?;
        let data = self.take(size(offsets)?)?;
        Ok((offsets, data))
    }
}

/// The sizes of the five columns of bytes: either wanted by a writer or found in the bytes by a reader.
#[derive(Clone, Copy, Default)]
pub struct Sizes {
    pub origins: u64,
    pub values: u64,
    pub keys: u64,
    pub header_count: u64,
    pub names: u64,
    pub hvalues: u64,
}

/// What the offsets at `at` say: the last of n + 1, if the first is 0 and it is not negative.
fn last_offset(d: &[u8], at: usize, n: usize) -> Result<u64, Refusal> {
    let last = i32_at(d, at + 4 * n);
    if i32_at(d, at) != 0 || last < 0 { Err(DO_NOT_ADD_UP) } else { Ok(last as u64) }
}

/// The one walk over all columns in their order. With `found`, sizes are read from a batch; else `sizes` are taken.
fn place(head: &Head, limit: u64, found: Option<&[u8]>, sizes: &Sizes) -> Result<Layout, Refusal> {
    let n = head.count;
    let bitmap = n.div_ceil(8) as u64;
    let mut w = Layout::default();
    let mut p = Places { pos: HEADER_BYTES as u64, limit };
    let ask = |wanted: u64, entries: usize| move |at: usize| found.map_or(Ok(wanted), |d| last_offset(d, at, entries));
    (w.origin_offsets, w.origin_data) = p.var(head.origins, ask(sizes.origins, head.origins))?;
    if head.origins > 1 {
        w.origin_index = p.take(n as u64)?;
    }
    if head.has(VALUE_NULLS) {
        w.value_bitmap = p.take(bitmap)?;
    }
    (w.value_offsets, w.value_data) = p.var(n, ask(sizes.values, n))?;
    if head.has(KEY_NULLS) {
        w.key_bitmap = p.take(bitmap)?;
    }
    if head.has(KEYS) {
        (w.key_offsets, w.key_data) = p.var(n, ask(sizes.keys, n))?;
    }
    if head.has(HEADERS) {
        w.header_lists = p.take(4 * (n as u64 + 1))?;
        let m = ask(sizes.header_count, n)(w.header_lists)? as usize;
        w.header_count = m;
        (w.name_offsets, w.name_data) = p.var(m, ask(sizes.names, m))?;
        if head.has(HEADER_NULLS) {
            w.hvalue_bitmap = p.take(m.div_ceil(8) as u64)?;
        }
        (w.hvalue_offsets, w.hvalue_data) = p.var(m, ask(sizes.hvalues, m))?;
    }
    if head.has(TIMESTAMPS) {
        w.timestamps = p.take(8 * n as u64)?;
    }
    if head.has(EXPIRY) {
        w.expiries = p.take(8 * n as u64)?;
    }
    if head.has(SPARSE) {
        w.deltas = p.take(4 * n as u64)?;
    }
    if head.has(CHAIN) {
        p.take(LINK_BYTES as u64)?;
    }
    w.end = p.pos as usize;
    Ok(w)
}

/// The layout of a batch of these sizes that is about to be written; sets head.length.
pub fn plan(head: &mut Head, sizes: &Sizes) -> Result<Layout, Refusal> {
    if head.count as u64 > MAX_BATCH_BYTES {
        return Err(TOO_LARGE);
    }
    if head.columns == 0 && head.origins == 1 {
        return plan_plain(head, sizes); // nearly all batches of one record: the walk would be a tenth of their time
    }
    let w = place(head, MAX_BATCH_BYTES, None, sizes).map_err(|_| TOO_LARGE)?;
    head.length = w.end;
    Ok(w)
}

/// The same of one origin and nothing but values.
fn plan_plain(head: &mut Head, sizes: &Sizes) -> Result<Layout, Refusal> {
    let (origin_offsets, origin_data) = (HEADER_BYTES, HEADER_BYTES + 8);
    let value_offsets = origin_data as u64 + pad8(sizes.origins);
    let value_data = value_offsets + pad8(4 * (head.count as u64 + 1));
    let end = value_data + pad8(sizes.values);
    if end > MAX_BATCH_BYTES {
        return Err(TOO_LARGE);
    }
    head.length = end as usize;
    let (value_offsets, value_data, end) = (value_offsets as usize, value_data as usize, end as usize);
    Ok(Layout { origin_offsets, origin_data, value_offsets, value_data, end, ..Layout::default() })
}

/// A batch in a buffer: its header is sound, all of it is there, and its columns lie inside it. Entries are not checked.
pub struct Batch<'a> {
    pub d: &'a [u8],
    pub head: Head,
    pub at: Layout,
}

impl<'a> Batch<'a> {
    pub fn open(data: &'a [u8], start: usize) -> Result<Batch<'a>, Refusal> {
        let d = data.get(start..).unwrap_or(&[]);
        let head = Head::read(d).ok_or("no batch here: too short, or a header field is out of its range")?;
        let d = d.get(..head.length).ok_or("batch is cut short: the buffer ends before the batch does")?;
        Batch::with(d, head)
    }

    fn with(d: &'a [u8], head: Head) -> Result<Batch<'a>, Refusal> {
        let at = place(&head, head.length as u64, Some(d), &Sizes::default())?;
        if at.end != head.length { Err(DO_NOT_ADD_UP) } else { Ok(Batch { d, head, at }) }
    }

    /// Like open, with every entry checked.
    pub fn open_sound(data: &'a [u8]) -> Result<Batch<'a>, Refusal> {
        let batch = Batch::open(data, 0)?;
        if batch.sound() { Ok(batch) } else { Err(DO_NOT_ADD_UP) }
    }

    /// Bytes of all entries of the var of n at `offsets`.
    pub fn size(&self, offsets: usize, n: usize) -> usize {
        i32_at(self.d, offsets + 4 * n) as usize
    }

    pub fn value_size(&self) -> usize {
        self.size(self.at.value_offsets, self.head.count)
    }

    /// Entry i of the var of n at (offsets, data), checked.
    pub fn entry(&self, offsets: usize, data: usize, n: usize, i: usize) -> Result<&'a [u8], Refusal> {
        let (a, b) = (i32_at(self.d, offsets + 4 * i), i32_at(self.d, offsets + 4 * i + 4));
        if a < 0 || a > b || b as usize > self.size(offsets, n) {
            return Err(DO_NOT_ADD_UP);
        }
        Ok(&self.d[data + a as usize..data + b as usize])
    }

    pub fn is_null(&self, bitmap: usize, i: usize) -> bool {
        bitmap != 0 && self.d[bitmap + i / 8] >> (i % 8) & 1 == 0
    }

    pub fn origin(&self, number: usize) -> Result<&'a [u8], Refusal> {
        if number >= self.head.origins {
            return Err(DO_NOT_ADD_UP);
        }
        self.entry(self.at.origin_offsets, self.at.origin_data, self.head.origins, number)
    }

    pub fn origin_number(&self, i: usize) -> usize {
        if self.at.origin_index == 0 { 0 } else { self.d[self.at.origin_index + i] as usize }
    }

    pub fn delta(&self, i: usize) -> u64 {
        if self.at.deltas == 0 { i as u64 } else { u64::from(u32_at(self.d, self.at.deltas + 4 * i)) }
    }

    /// How many records of a sound batch are below base_offset + delta.
    pub fn rows_below(&self, delta: u64) -> usize {
        if self.at.deltas == 0 {
            return delta.min(self.head.count as u64) as usize;
        }
        let (mut low, mut high) = (0, self.head.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.delta(middle) < delta { low = middle + 1 } else { high = middle }
        }
        low
    }

    pub fn timestamp(&self, i: usize) -> i64 {
        if self.at.timestamps == 0 { self.head.timestamp } else { i64_at(self.d, self.at.timestamps + 8 * i) }
    }

    pub fn expiry(&self, i: usize) -> i64 {
        if self.at.expiries == 0 { 0 } else { i64_at(self.d, self.at.expiries + 8 * i) }
    }

    /// The header entries of record i, as a range of the name and value columns, checked.
    pub fn header_range(&self, i: usize) -> Result<std::ops::Range<usize>, Refusal> {
        let (a, b) = (i32_at(self.d, self.at.header_lists + 4 * i), i32_at(self.d, self.at.header_lists + 4 * i + 4));
        if a < 0 || a > b || b as usize > self.at.header_count {
            return Err(DO_NOT_ADD_UP);
        }
        Ok(a as usize..b as usize)
    }

    fn zero(&self, from: usize, to: usize) -> bool {
        self.d[from..to].iter().all(|b| *b == 0)
    }

    fn never_falls(&self, offsets: usize, n: usize) -> bool {
        let d = &self.d[offsets..offsets + 4 * (n + 1)];
        d.chunks_exact(4).zip(d[4..].chunks_exact(4)).fold(true, |ok, (a, b)| ok & (i32_at(a, 0) <= i32_at(b, 0)))
    }

    fn var_sound(&self, offsets: usize, data: usize, n: usize, bitmap: usize) -> bool {
        let end = data + self.size(offsets, n);
        let sound = self.never_falls(offsets, n)
            && self.zero(offsets + 4 * (n + 1), data)
            && self.zero(end, pad8(end as u64) as usize);
        if bitmap == 0 || !sound {
            return sound;
        }
        let spare_clear = (n..8 * (offsets - bitmap)).all(|i| self.is_null(bitmap, i));
        let nulls_empty = (0..n).all(|i| {
            !self.is_null(bitmap, i) || i32_at(self.d, offsets + 4 * i) == i32_at(self.d, offsets + 4 * i + 4)
        });
        spare_clear && nulls_empty
    }

    /// Every entry of every column is in range and all padding is zero.
    fn sound(&self) -> bool {
        let (n, w) = (self.head.count, &self.at);
        if !self.var_sound(w.origin_offsets, w.origin_data, self.head.origins, 0) {
            return false;
        }
        if w.origin_index != 0 {
            let end = w.origin_index + n;
            let greatest = self.d[w.origin_index..end].iter().fold(0, |most, b| *b.max(&most));
            if greatest as usize >= self.head.origins || !self.zero(end, pad8(end as u64) as usize) {
                return false;
            }
        }
        if !self.var_sound(w.value_offsets, w.value_data, n, w.value_bitmap) {
            return false;
        }
        if w.key_offsets != 0 && !self.var_sound(w.key_offsets, w.key_data, n, w.key_bitmap) {
            return false;
        }
        if w.header_lists != 0 {
            let lists = self.never_falls(w.header_lists, n) && self.zero(w.header_lists + 4 * (n + 1), w.name_offsets);
            if !lists
                || !self.var_sound(w.name_offsets, w.name_data, w.header_count, 0)
                || !self.var_sound(w.hvalue_offsets, w.hvalue_data, w.header_count, w.hvalue_bitmap)
            {
                return false;
            }
        }
        if w.deltas != 0 {
            let end = w.deltas + 4 * n;
            let rising = (1..n).all(|i| self.delta(i - 1) < self.delta(i));
            return rising
                && self.delta(n - 1) < u64::from(self.head.span)
                && self.zero(end, pad8(end as u64) as usize);
        }
        true
    }

    pub fn greatest_timestamp(&self, timestamp: i64) -> i64 {
        if self.at.timestamps == 0 {
            return timestamp;
        }
        (0..self.head.count).map(|i| self.timestamp(i)).max().unwrap_or(timestamp)
    }
}

// -- looking through a segment ----------------------------------------------------------------------------------------

/// The header of the batch at start of data[..stop], all of which is there, or the reason why there is none.
/// start <= stop <= data.len().
pub fn head_at(data: &[u8], start: usize, stop: usize) -> Result<Head, i64> {
    let d = &data[start..stop];
    if d.len() < 4 {
        return Err(CUT_SHORT);
    }
    if d[..4] != MAGIC {
        return Err(if d[..4] == [0; 4] { ZEROS } else { BAD_HEADER });
    }
    if d.len() < HEADER_BYTES {
        return Err(CUT_SHORT);
    }
    let head = Head::read(d).ok_or(BAD_HEADER)?;
    if d.len() < head.length { Err(CUT_SHORT) } else { Ok(head) }
}

/// The batch with this header at start of data, every entry checked, or the reason why it is not sound. Without a seed
/// it is one from memory, which has no checksum.
pub fn sound_at(data: &[u8], start: usize, head: Head, seed: Option<u32>) -> Result<Batch<'_>, i64> {
    let d = &data[start..start + head.length];
    if seed.is_some_and(|seed| crc32c(&d[8..], seed) != u32_at(d, 4)) {
        return Err(BAD_CHECKSUM);
    }
    match Batch::with(d, head) {
        Ok(batch) if batch.sound() => Ok(batch),
        _ => Err(BAD_COLUMNS),
    }
}

/// Length of the sound batch at start of data[..stop], or the reason why there is none. start <= stop <= data.len().
pub fn check(data: &[u8], start: usize, stop: usize, seed: u32, verify: bool) -> i64 {
    let found = head_at(data, start, stop)
        .and_then(|head| if verify { sound_at(data, start, head, Some(seed)).map(|_| head) } else { Ok(head) });
    found.map_or_else(|reason| reason, |head| head.length as i64)
}

pub type Step = (usize, usize, u64, u32, i64);

pub fn walk(data: &[u8], start: usize, stop: usize, seed: u32, verify: bool) -> (Vec<Step>, usize, i64) {
    let mut found = Vec::new();
    let (mut pos, mut next_offset) = (start, 0);
    while pos < stop {
        let length = check(data, pos, stop, seed, verify);
        let head = if length > 0 { Head::read(&data[pos..stop]) } else { None };
        let Some(head) = head else { return (found, pos, length) };
        if head.base_offset < next_offset {
            return (found, pos, OFFSETS_FELL);
        }
        found.push((pos, head.length, head.base_offset, head.span, head.max_timestamp));
        next_offset = head.base_offset + u64::from(head.span);
        pos += head.length;
    }
    (found, pos, ZEROS)
}

pub fn find(data: &[u8], start: usize, stop: usize, seed: u32) -> i64 {
    (start..stop)
        .step_by(8)
        .find(|pos| data[*pos..stop].starts_with(&MAGIC) && check(data, *pos, stop, seed, true) > 0)
        .map_or(-1, |pos| pos as i64)
}
